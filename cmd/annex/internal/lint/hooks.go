package lint

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// Import paths of the library's packages with functions that take hooks.
const (
	libraryPath   = "github.com/annexapi/annex"
	operationPath = libraryPath + "/operation"
	streamPath    = libraryPath + "/stream"
)

// hookPlace is a place in a server's definition that takes a function of the user's.
type hookPlace struct {
	// answer is the code and the reason with which a plain error is answered.
	answer string
	// refuses is set if a plain error refuses a request, so that the answer does not look like a fault of the server.
	refuses bool
}

var (
	refusal = hookPlace{answer: "403 Forbidden", refuses: true}
	fault   = hookPlace{answer: "500 InternalError"}
	unread  = hookPlace{answer: "503 ServiceUnavailable"}
	methods = map[string]hookPlace{
		"Admit":        refusal,
		"Mutate":       refusal,
		"AdmitCreate":  refusal,
		"AdmitUpdate":  refusal,
		"AdmitConnect": refusal,
	}
	sources   = map[string]hookPlace{"Get": unread, "List": unread, "Create": fault, "Update": fault, "Delete": fault}
	functions = map[string]map[string]hookPlace{
		libraryPath:   {"Action": fault, "View": fault, "Connect": fault, "Validating": refusal, "Mutating": refusal},
		operationPath: {"Action": fault},
		streamPath: {
			"Logs": fault, "LogsAt": fault, "Exec": fault, "ExecAt": fault, "Attach": fault, "AttachAt": fault,
			"PortForwardAt": fault, "Proxy": fault,
		},
	}
)

// Hooks finds hooks that return a plain error although an API status would give clients more. It reads the files
// without types. Therefore it finds only functions that are written where they are passed or declared in the same
// package, and errors that are created in the return statement. It changes nothing and needs no network.
func Hooks(ctx context.Context, o Options) ([]Finding, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	s := &source{root: dir, fset: token.NewFileSet()}
	var findings []Finding
	for _, m := range modules(dir, o.Patterns) {
		listed, err := s.load(ctx, m.dir, packages.NeedName|packages.NeedFiles, m.patterns)
		if err != nil {
			return nil, err
		}
		all, err := s.parse(listed)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			findings = append(findings, s.hooks(p)...)
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	return slices.CompactFunc(findings, func(a, b Finding) bool { return a == b }), nil
}

// hookFinder finds the plain errors of hooks in one file.
type hookFinder struct {
	source  *source
	imports map[string]string // of the file
	// declared holds the functions of the package, and its methods by their bare names, since the receiver of a
	// method value is unknown without types. Nil marks an ambiguous name.
	declared map[string]*function
	findings []Finding
}

// function is a function body, with the imports of its file.
type function struct {
	body    *ast.BlockStmt
	imports map[string]string
}

func (s *source) hooks(p parsedPackage) []Finding {
	declared := map[string]*function{}
	for _, f := range p.files {
		imports := s.importsOf(f)
		for _, d := range f.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			if _, twice := declared[decl.Name.Name]; twice {
				declared[decl.Name.Name] = nil
				continue
			}
			declared[decl.Name.Name] = &function{decl.Body, imports}
		}
	}
	var findings []Finding
	for _, f := range p.files {
		h := &hookFinder{source: s, imports: s.importsOf(f), declared: declared}
		if !h.usesLibrary() {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				h.call(n)
			case *ast.CompositeLit:
				h.literal(n)
			}
			return true
		})
		findings = append(findings, h.findings...)
	}
	return findings
}

func (h *hookFinder) usesLibrary() bool {
	for _, path := range h.imports {
		if path == libraryPath || path == operationPath || path == streamPath {
			return true
		}
	}
	return false
}

// call checks a call that may pass a hook.
func (h *hookFinder) call(call *ast.CallExpr) {
	if len(call.Args) == 0 {
		return
	}
	if path, name, ok := qualified(h.imports, generic(call.Fun)); ok {
		if where, ok := functions[path][name]; ok {
			h.function(where, named(name, call.Args[0]), call.Args[len(call.Args)-1], false)
		}
		return
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	name, with := strings.CutSuffix(method.Sel.Name, "With")
	if where, ok := methods[name]; ok {
		h.function(where, method.Sel.Name, call.Args[0], with)
	}
	if method.Sel.Name == "Check" && h.imports["stream"] == streamPath {
		h.function(fault, "Check", call.Args[0], false)
	}
}

// literal checks the functions in an annex.Source.
func (h *hookFinder) literal(l *ast.CompositeLit) {
	path, name, ok := qualified(h.imports, generic(l.Type))
	if !ok || path != libraryPath || name != "Source" {
		return
	}
	for _, element := range l.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key, ok := pair.Key.(*ast.Ident); ok {
			if where, ok := sources[key.Name]; ok {
				h.function(where, "Source."+key.Name, pair.Value, false)
			}
		}
	}
}

// generic returns the function or type of an expression without type arguments.
func generic(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.IndexExpr:
		return e.X
	case *ast.IndexListExpr:
		return e.X
	}
	return e
}

// named returns the name of a function, followed by the name of the subresource if that is a literal.
func named(function string, argument ast.Expr) string {
	if literal, ok := argument.(*ast.BasicLit); ok && literal.Kind == token.STRING {
		return function + " " + strings.Trim(literal.Value, "\"`")
	}
	return function
}

// function checks a hook, or, if made is set, a function that returns a hook.
func (h *hookFinder) function(where hookPlace, name string, e ast.Expr, made bool) {
	body, imports := h.body(e)
	if body == nil {
		return
	}
	if !made {
		h.returns(where, name, body, imports)
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if _, inner := n.(*ast.FuncLit); inner {
			return false
		}
		if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 2 {
			h.function(where, name, r.Results[0], false)
		}
		return true
	})
}

// body returns the body of a function literal, or of a function that the package declares, with the imports of its
// file.
func (h *hookFinder) body(e ast.Expr) (*ast.BlockStmt, map[string]string) {
	name := ""
	switch e := e.(type) {
	case *ast.FuncLit:
		return e.Body, h.imports
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	case *ast.CallExpr: // annex.AdmitFunc[T](f)
		if len(e.Args) == 1 {
			return h.body(e.Args[0])
		}
	}
	if f := h.declared[name]; f != nil {
		return f.body, f.imports
	}
	return nil, nil
}

// returns finds the return statements of a hook that create a plain error. It skips nested functions, except for
// functions that change an object: Update returns their errors.
func (h *hookFinder) returns(where hookPlace, name string, body *ast.BlockStmt, imports map[string]string) {
	changes := map[ast.Expr]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Update" || f.Sel.Name == "UpdateStatus") {
				for _, argument := range n.Args {
					changes[argument] = true
				}
			}
		case *ast.FuncLit:
			return changes[n]
		case *ast.ReturnStmt:
			if len(n.Results) > 0 && isPlain(imports, n.Results[len(n.Results)-1]) {
				h.find(where, name, n.Pos())
			}
		}
		return true
	})
}

// isPlain reports whether an expression creates an error that wraps none.
func isPlain(imports map[string]string, e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	path, name, ok := qualified(imports, call.Fun)
	switch {
	case !ok:
		return false
	case path == "errors" && name == "New":
		return true
	}
	format, literal := call.Args[0].(*ast.BasicLit)
	return path == "fmt" && name == "Errorf" && literal && !strings.Contains(format.Value, "%w")
}

func (h *hookFinder) find(where hookPlace, name string, pos token.Pos) {
	at := h.source.position(pos)
	f := Finding{File: at.Filename, Line: at.Line, Rule: "plain-error", Where: name, Note: where.refuses}
	if where.refuses {
		f.Message = fmt.Sprintf("clients get the error as %s: return annex.Invalid for a wrong object, annex.Unavailable if the "+
			"hook cannot decide, or annex.Forbidden for an intended rejection", where.answer)
	} else {
		f.Message = fmt.Sprintf("clients get the error as %s, a fault of the server: return annex.Invalid, Forbidden, NotFound, "+
			"Conflict, TooManyRequests or Unavailable, or wrap the cause of a fault with %%w", where.answer)
	}
	h.findings = append(h.findings, f)
}
