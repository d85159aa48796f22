package scaffold

import (
	"context"
	"fmt"
	"go/ast"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// controllerRuntime is the version that goes with the library's Kubernetes. The library
// itself does not depend on it.
const (
	controllerRuntime        = "sigs.k8s.io/controller-runtime"
	controllerRuntimeVersion = "v0.25.2"
)

// Controller adds a controller of a kind to the server. It is made with controller-runtime,
// which the go command adds to a module that does not require it yet.
func Controller(ctx context.Context, o HookOptions) (*Result, error) {
	k, err := findKind(o.Dir, o.Group, o.Kind)
	if err != nil {
		return nil, err
	}
	p := k.project
	d := k.hook()
	if err := k.refuseDeclared("run" + d.Exported + "Controller"); err != nil {
		return nil, err
	}
	if s, t := k.hub.typeNamed(o.Kind + "Status"); s == nil || !hasField(t, "Conditions") {
		return nil, p.problem(p.server, k.element.Pos(), "kind %s has no conditions in its status, by which a controller tells how far it has come: add Conditions []metav1.Condition to %sStatus", o.Kind, o.Kind)
	}
	d.Define = definedBy(p.server.file, p.definition)
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
	annex := p.server.importName(library)
	element := fmt.Sprintf("{Name: %q, Run: run%sController}", strings.ToLower(d.Exported), d.Exported)
	switch value := fieldOf(p.definition, "Controllers").(type) {
	case nil:
		p.server.appendTo(p.definition, fmt.Sprintf("Controllers: []%s.Controller{\n%s,\n}", annex, element))
	case *ast.CompositeLit:
		p.server.appendTo(value, element)
	default:
		return nil, p.problem(p.server, value.Pos(), "Controllers is not written out as []annex.Controller{...}, so that nothing can be added to it: write it out in the literal of annex.Server")
	}
	if !o.DryRun {
		if err := p.needs(ctx, controllerRuntime, controllerRuntimeVersion); err != nil {
			return nil, err
		}
	}
	files, err := k.addHook(w, o.Options, controllerRuntime, "k8s.io/klog/v2")
	if err != nil {
		return nil, err
	}
	return &Result{Files: files, Next: []string{
		"edit " + p.show(controller) + "   # reconcile: what a " + o.Kind + " asks for",
		"go run . serve   # runs the controller too; to run it in a process of its own:",
		"go run . serve --controllers=''   # and beside it",
		"go run . controllers --kubeconfig data/kubeconfig --leader-elect=false",
	}}, nil
}

// needs has the project's module require another, in that version unless it requires one.
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
		return generate.Problem{File: p.show("go.mod"), Message: err.Error() + ": run this again when the module proxy can be reached"}
	}
	return nil
}

// hasField tells whether a struct has a field of that name.
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
