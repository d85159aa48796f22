package serve

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A third mode needs a type and a line here, and a type in internal/program/plan.
func TestMode_chosenInOnePlace(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if n.Sel.Name == "Aggregated" {
					found++
					if name != "mode.go" {
						t.Errorf("%s asks whether the server is aggregated: that is a method of mode", name)
					}
				}
			case *ast.TypeAssertExpr:
				if selector, ok := n.X.(*ast.SelectorExpr); ok && selector.Sel.Name == "mode" {
					t.Errorf("%s asks which mode it is", name)
				}
			}
			return true
		})
	}
	if found != 1 {
		t.Errorf("the mode is chosen in %d places", found)
	}
}
