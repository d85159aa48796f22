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

// edit replaces the text between two offsets of a file. Files are edited as text, at positions from their syntax
// trees, because printing a changed tree may misplace comments.
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

// edited returns the formatted file with all edits applied.
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

// importName returns the file's import name for a package, or an empty string.
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

// use returns the file's import name for a package. It imports the package as alias if the file does not import it
// yet.
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

// besideLibrary returns the end of the library's import in a grouped import declaration, if the path is another
// package of the library.
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

// editImports adds the imports of the edits, in a group of their own or in that of the module's own packages.
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

// imports returns the file's last import declaration, or nil.
func (s *source) imports() *ast.GenDecl {
	var last *ast.GenDecl
	for _, d := range s.file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			last = g
		}
	}
	return last
}

// gap returns the blank line between other packages and the module's own, if the declaration needs one.
func (s *source) gap(decl *ast.GenDecl) string {
	if n := len(decl.Specs); n > 0 {
		last, _ := strconv.Unquote(decl.Specs[n-1].(*ast.ImportSpec).Path.Value)
		if strings.HasPrefix(last, s.module+"/") {
			return ""
		}
	}
	return "\n"
}

// literal returns the first composite literal of a type of the library, or nil.
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

// fieldOf returns the value of a field in a composite literal with keys, or nil.
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

// appendTo appends an element to a composite literal, on lines of its own.
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

// comma reports whether there is a comma between two positions, ignoring comments.
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
