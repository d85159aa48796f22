package scaffold

import (
	"fmt"
	"go/ast"
	"strings"
)

// Controller adds a controller of a kind to the server. It is made of client-go's
// informers and queues, which every project links already: go.mod gains nothing.
func Controller(o HookOptions) (*Result, error) {
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
	files, err := k.addHook(w, o.Options, "k8s.io/client-go")
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
