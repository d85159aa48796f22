package scaffold

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/scanner"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// edit puts text in place of what is between two offsets of a file. Files are edited
// as text, at places that their syntax trees tell, because a tree that is printed
// again may lose the place of a comment.
type edit struct {
	from, to int
	text     string
}

func (s *source) offset(at token.Pos) int { return s.fset.Position(at).Offset }

func (s *source) insert(at token.Pos, text string) {
	s.edits = append(s.edits, edit{s.offset(at), s.offset(at), text})
}

func (s *source) replace(from, to token.Pos, text string) {
	s.edits = append(s.edits, edit{s.offset(from), s.offset(to), text})
}

// edited returns the file with all edits done, formatted.
func (s *source) edited() ([]byte, error) {
	s.editImports()
	slices.SortStableFunc(s.edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	var out []byte
	at := 0
	for _, e := range s.edits {
		out = append(out, s.text[at:e.from]...)
		out = append(out, e.text...)
		at = e.to
	}
	out = append(out, s.text[at:]...)
	formatted, err := format.Source(out)
	if err != nil {
		return nil, fmt.Errorf("edit %s: %w", s.path, err)
	}
	return formatted, nil
}

// importName is the name by which the file knows the package of that path, or empty.
func (s *source) importName(importPath string) string {
	for _, spec := range s.file.Imports {
		if value, err := strconv.Unquote(spec.Path.Value); err != nil || value != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

// use returns the name by which the file knows the package, and imports it as alias
// if it does not know it.
func (s *source) use(importPath, alias string) string {
	if name := s.importName(importPath); name != "" && name != "_" {
		return name
	}
	spec := fmt.Sprintf("%s %q", alias, importPath)
	if alias == path.Base(importPath) {
		spec = strconv.Quote(importPath)
	}
	at := s.besideLibrary(importPath)
	switch {
	case at.IsValid() && !slices.ContainsFunc(s.edits, func(e edit) bool { return e.text == "\n"+spec }):
		s.insert(at, "\n"+spec)
	case !at.IsValid() && !slices.Contains(s.imported, spec):
		s.imported = append(s.imported, spec)
	}
	return alias
}

// besideLibrary is the end of the import of the library, in a declaration of several, if the path is of another
// package of it.
func (s *source) besideLibrary(importPath string) token.Pos {
	last := s.imports()
	if last == nil || !last.Lparen.IsValid() || !strings.HasPrefix(importPath, library+"/") {
		return token.NoPos
	}
	for _, spec := range last.Specs {
		spec := spec.(*ast.ImportSpec)
		if value, err := strconv.Unquote(spec.Path.Value); err == nil && value == library {
			return spec.End()
		}
	}
	return token.NoPos
}

// editImports adds what the edits use, in a group of its own or that of the module's
// own packages.
func (s *source) editImports() {
	if len(s.imported) == 0 {
		return
	}
	specs := strings.Join(s.imported, "\n") + "\n"
	last := s.imports()
	switch {
	case last == nil:
		s.insert(s.file.Name.End(), "\n\nimport (\n"+specs+")\n")
	case !last.Lparen.IsValid():
		s.insert(last.Specs[0].Pos(), "(\n")
		s.insert(last.End(), "\n"+s.gap(last)+specs+")")
	default:
		s.insert(last.Rparen, s.gap(last)+specs)
	}
	s.imported = nil
}

// imports is the file's last import declaration, or nil.
func (s *source) imports() *ast.GenDecl {
	var last *ast.GenDecl
	for _, d := range s.file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			last = g
		}
	}
	return last
}

// gap separates the module's own packages from those before them.
func (s *source) gap(decl *ast.GenDecl) string {
	if n := len(decl.Specs); n > 0 {
		last, _ := strconv.Unquote(decl.Specs[n-1].(*ast.ImportSpec).Path.Value)
		if strings.HasPrefix(last, s.module+"/") {
			return ""
		}
	}
	return "\n"
}

// literal finds the composite literal of the library's type of that name, which is
// written out in full, or nil.
func (s *source) literal(name string) *ast.CompositeLit {
	annex := s.importName(library)
	if annex == "" {
		return nil
	}
	var found *ast.CompositeLit
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok && found == nil && isSelector(lit.Type, annex, name) {
			found = lit
		}
		return found == nil
	})
	return found
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// fieldOf is the value of a field in a composite literal with keys, or nil.
func fieldOf(lit *ast.CompositeLit, name string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

// appendTo adds an element to a composite literal, on lines of its own.
func (s *source) appendTo(lit *ast.CompositeLit, text string) {
	if n := len(lit.Elts); n > 0 && !s.comma(lit.Elts[n-1].End(), lit.Rbrace) {
		s.insert(lit.Elts[n-1].End(), ",")
	}
	line := ""
	if s.fset.Position(lit.Rbrace).Line == s.fset.Position(lit.Lbrace).Line {
		line = "\n"
	}
	s.insert(lit.Rbrace, line+text+",\n")
}

// comma tells whether there is one between two places, comments aside.
func (s *source) comma(from, to token.Pos) bool {
	var sc scanner.Scanner
	fset := token.NewFileSet()
	text := s.text[s.offset(from):s.offset(to)]
	sc.Init(fset.AddFile("", -1, len(text)), text, nil, 0)
	_, tok, _ := sc.Scan()
	return tok == token.COMMA
}

func syntaxProblem(path string, err error) error {
	var list scanner.ErrorList
	if !errors.As(err, &list) {
		return generate.Problem{File: path, Message: err.Error()}
	}
	return generate.Problem{File: path, Line: list[0].Pos.Line, Column: list[0].Pos.Column, Message: list[0].Msg}
}
