package scaffold

import (
	"context"
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// controllerRuntime is the version that matches the library's Kubernetes version. The library itself does not depend
// on it.
const (
	controllerRuntime        = "sigs.k8s.io/controller-runtime"
	controllerRuntimeVersion = "v0.25.2"
)

// Controller adds a controller of a kind to the server. It uses controller-runtime, which the go command adds to a
// module without that requirement.
func Controller(ctx context.Context, o HookOptions) (*Result, error) {
	k, err := findKind(o.Dir, o.Group, o.Kind)
	if err != nil {
		return nil, err
	}
	p := k.project
	d := k.hook()
	for _, name := range []string{"setup", "run"} { // older projects call it run
		if err := k.refuseDeclared(name + d.Exported + "Controller"); err != nil {
			return nil, err
		}
	}
	if s, t := k.hub.typeNamed(o.Kind + "Status"); s == nil || !hasField(t, "Conditions") {
		return nil, p.problem(p.server, k.element.Pos(), "kind %s has no conditions in its status, in which the controller reports its "+
			"progress: add Conditions []metav1.Condition to %sStatus", o.Kind, o.Kind)
	}
	d.Define = definedBy(p.server.file, p.definition)
	d.ControllerName = strings.ToLower(d.Exported)
	w := &plan{root: p.root}
	controller := k.beside("_controller.go")
	if err := w.render(controller, "controller/controller.go", d); err != nil {
		return nil, err
	}
	if d.Define != "" {
		if err := w.render(k.beside("_controller_test.go"), "controller/controller_test.go", d); err != nil {
			return nil, err
		}
	}
	if err := k.manage(w, d, "setup"+d.Exported+"Controller"); err != nil {
		return nil, err
	}
	if !o.DryRun {
		if err := p.needs(ctx, controllerRuntime, controllerRuntimeVersion); err != nil {
			return nil, err
		}
	}
	files, err := k.addHook(
		w,
		o.Options,
		controllerRuntime,
		"github.com/prometheus/client_golang",
		"k8s.io/api",
		"k8s.io/client-go",
		"k8s.io/klog/v2",
	)
	if err != nil {
		return nil, err
	}
	return &Result{Files: files, Next: []string{
		"edit " + p.show(controller) + "   # implement reconcile for " + o.Kind,
		"go run . serve   # runs the controller too; to run it in a separate process:",
		"go run . serve --controllers=''   # in one terminal, and in another:",
		"go run . controllers --kubeconfig data/kubeconfig",
	}}, nil
}

// manage adds the controller's setup to the server's controllers, beside the others in their manager. The first
// controller also adds the manager, in a file of its own.
func (k *projectKind) manage(w *plan, d hookData, setup string) error {
	p := k.project
	controllers := fieldOf(p.definition, "Controllers")
	if call := managed(controllers); call != nil {
		if n := len(call.Args); n > 0 && !p.server.comma(call.Args[n-1].End(), call.Rparen) {
			setup = ", " + setup
		}
		p.server.insert(call.Rparen, setup)
		return nil
	}
	if err := k.refuseDeclared("manage"); err != nil {
		return err
	}
	element := fmt.Sprintf("{Name: %q, Run: manage(%s)}", "manager", setup)
	switch value := controllers.(type) {
	case nil:
		element = fmt.Sprintf("Controllers: []%s.Controller{\n%s,\n}", p.server.importName(library), element)
		if fieldOf(p.definition, "Metrics") == nil {
			element += ",\nMetrics: managerMetrics"
		}
		p.server.appendTo(p.definition, element)
	case *ast.CompositeLit:
		p.server.appendTo(value, element)
		if fieldOf(p.definition, "Metrics") == nil {
			p.server.appendTo(p.definition, "Metrics: managerMetrics")
		}
	default:
		return p.problem(p.server, value.Pos(), "cannot add to Controllers, which is not a literal []annex.Controller{...}: write it as a "+
			"literal in the literal of annex.Server")
	}
	return w.render(path.Join(path.Dir(p.server.path), "manager.go"), "controller/manager.go", d)
}

// managed returns the call of manage among the controllers, or nil.
func managed(controllers ast.Expr) *ast.CallExpr {
	if controllers == nil {
		return nil
	}
	var found *ast.CallExpr
	ast.Inspect(controllers, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && found == nil {
			if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "manage" {
				found = call
			}
		}
		return found == nil
	})
	return found
}

// needs adds a requirement to the project's module, in this version unless the module requires another.
func (p *project) needs(ctx context.Context, module, version string) error {
	existing, err := readModule(p.root)
	if err != nil {
		return err
	}
	f, err := parseModule(p.module, existing.mod)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(f.Require, func(r *modfile.Require) bool { return r.Mod.Path == module }) {
		return nil
	}
	if err := goGet(ctx, p.root, module+"@"+version); err != nil {
		return generate.Problem{File: p.show("go.mod"), Message: err.Error() + ": run this command again when the module proxy is reachable"}
	}
	return nil
}

// hasField reports whether a struct type has a field of that name.
func hasField(t *ast.TypeSpec, name string) bool {
	st, ok := t.Type.(*ast.StructType)
	if !ok {
		return false
	}
	for _, f := range st.Fields.List {
		for _, id := range f.Names {
			if id.Name == name {
				return true
			}
		}
	}
	return false
}
