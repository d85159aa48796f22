package scaffold

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// HookOptions identify a kind that gets a hook.
type HookOptions struct {
	Options
	// Group and Kind are as in VersionOptions.
	Group, Kind string
}

// hookData is the data for the templates of files beside the server.
type hookData struct {
	kindData
	// Package is the name of the definition's package. Hub is the import name of the hub's package in its files, and
	// HubImport its import path.
	Package, Hub, HubImport string
	Namespaced              bool
	// Define is an expression for the server's definition.
	Define string
	// Sample is the path of the kind's sample object, and Samples the pattern of all samples, from the server's
	// folder.
	Sample, Samples string
	// Exported and Private begin the names of the kind's functions: the kind, prefixed by its group's first label if
	// another group has a kind of that name.
	Exported, Private string
	// Name, Title, Request and Handler are the names of a subresource.
	Name, Title, Request, Handler string
	// ControllerName is the controller's name in metrics and Events.
	ControllerName string
}

func (k *projectKind) hook() hookData {
	version := path.Base(k.hub.dir)
	d := hookData{kindData: newKindData(k.project, k.group, version, k.kind, k.resource)}
	d.Package, d.Hub = k.project.server.file.Name.Name, k.pkg
	d.HubImport = path.Join(k.project.module, k.hub.dir)
	d.Namespaced = k.call("ClusterScoped") == nil
	d.Exported = k.exported()
	d.Private = unexported(d.Exported)
	up, err := filepath.Rel(filepath.FromSlash(path.Dir(k.project.server.path)), filepath.FromSlash(samplePath(d.kindData)))
	if err == nil {
		d.Sample = filepath.ToSlash(up)
		d.Samples = path.Join(path.Dir(d.Sample), "*.yaml")
	}
	return d
}

// exported returns the kind's name, prefixed by the first label of its group if another group has a kind of that
// name: AnimalCat.
func (k *projectKind) exported() string {
	if !k.ambiguous {
		return k.kind
	}
	var b strings.Builder
	label, _, _ := strings.Cut(k.group, ".")
	for word := range strings.SplitSeq(label, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String() + k.kind
}

// beside returns the path of a file for the kind in the folder of the server's definition.
func (k *projectKind) beside(suffix string) string {
	return path.Join(path.Dir(k.project.server.path), strings.ToLower(k.exported())+suffix)
}

// mentions reports whether the kind's registration names a function of the server's package.
func (k *projectKind) mentions(function string) bool {
	found := false
	mentioned(k.element, func(id *ast.Ident) { found = found || id.Name == function })
	return found
}

// addCall adds a method call to the kind's registration.
func (k *projectKind) addCall(call string) {
	k.project.server.insert(k.element.End(), ".\n"+call)
}

// addHook carries out a plan with edits of the server's definition. requires are modules whose packages the new files
// import.
func (k *projectKind) addHook(w *plan, o Options, requires ...string) ([]File, error) {
	if err := w.edited(k.project.server); err != nil {
		return nil, err
	}
	if err := w.direct(requires...); err != nil {
		return nil, err
	}
	return w.carryOut(o)
}

// refuseDeclared returns an error if the server's package declares a name already.
func (k *projectKind) refuseDeclared(name string) error {
	p := k.project
	dir := filepath.Join(p.root, filepath.FromSlash(path.Dir(p.server.path)))
	pkg, err := p.readPackage(dir)
	if err != nil {
		return err
	}
	if s, f := pkg.function(name); f != nil {
		return p.problem(s, f.Pos(), "%s is declared already: add your rules to it, or rename it", name)
	}
	return nil
}

// Admission adds an admission hook to a kind.
func Admission(o HookOptions) (*Result, error) {
	k, err := findKind(o.Dir, o.Group, o.Kind)
	if err != nil {
		return nil, err
	}
	d := k.hook()
	for _, name := range []string{"admit" + d.Exported, "admit" + o.Kind} {
		if name != "admit"+d.Exported && !k.mentions(name) {
			continue // it belongs to another group's kind of that name
		}
		if err := k.refuseDeclared(name); err != nil {
			return nil, err
		}
	}
	w := &plan{root: k.project.root}
	hook, test := k.beside("_admission.go"), k.beside("_admission_test.go")
	if err := w.render(hook, "admission/admission.go", d); err != nil {
		return nil, err
	}
	if err := w.render(test, "admission/admission_test.go", d); err != nil {
		return nil, err
	}
	k.addCall("Admit(admit" + d.Exported + ")")
	p := k.project
	files, err := k.addHook(w, o.Options)
	if err != nil {
		return nil, err
	}
	return &Result{Files: files, Next: []string{
		"edit " + p.show(hook) + "   # admit or reject writes",
		"edit " + p.show(test) + "   # add a case for each rule",
	}}, nil
}

// SubresourceOptions describe a new subresource of a kind.
type SubresourceOptions struct {
	HookOptions
	// Name is the subresource's name, such as feed. Empty means the form, unless that is action.
	Name string
	// Form is the form of the subresource, one of Forms. Empty means action.
	Form string
}

// form is a form of subresources.
type form struct {
	// builder is the function of package stream that declares it. what names the part that the user edits next.
	builder, what string
	tested        bool
}

const action = "action"

// forms are the forms in package stream, which need no types of the project.
var forms = map[string]form{
	"logs":        {"Logs", "where its log is", true},
	"exec":        {"Exec", "a shell command", true},
	"attach":      {"Attach", "what runs there", true},
	"portforward": {"PortForward", "where its ports are", false},
	"proxy":       {"Proxy", "where its HTTP server is", false},
}

// Forms returns the forms of subresources that can be added, the default first.
func Forms() []string { return append([]string{action}, slices.Sorted(maps.Keys(forms))...) }

var subresourcePattern = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// Subresource adds a subresource to a kind: an action, which takes requests, or another form.
func Subresource(o SubresourceOptions) (*Result, error) {
	if o.Form == "" {
		o.Form = action
	}
	form, streams := forms[o.Form]
	if streams && o.Name == "" {
		o.Name = o.Form
	}
	switch {
	case !streams && o.Form != action:
		return nil, misuse("--form %q: unknown form; forms are %s", o.Form, strings.Join(Forms(), ", "))
	case o.Name == "":
		return nil, misuse("--name is missing: set it to the name of the subresource, such as feed")
	case !subresourcePattern.MatchString(o.Name) || len(o.Name) > 63:
		return nil, misuse("--name %q: the name of a subresource must have only lower-case letters and digits, such as feed", o.Name)
	case o.Name == "status" || o.Name == "scale":
		return nil, misuse("--name %q: this subresource has its own definition: a field Status adds /status, and Scale(...) in the "+
			"definition of the kind adds /scale", o.Name)
	}
	k, err := findKind(o.Dir, o.Group, o.Kind)
	if err != nil {
		return nil, err
	}
	p := k.project
	d := k.hook()
	d.Name, d.Title = o.Name, strings.ToUpper(o.Name[:1])+o.Name[1:]
	d.Request, d.Handler = o.Kind+d.Title, o.Name+d.Exported
	if at := k.subresource(o.Name); at.IsValid() {
		return nil, p.problem(p.server, at, "kind %s has a subresource %s already: choose another name", o.Kind, o.Name)
	}
	if s, t := k.hub.typeNamed(d.Request); s != nil && !streams {
		return nil, p.problem(
			s,
			t.Pos(),
			"%s is declared already, but the request's type needs this name: choose another name, or rename the declaration",
			d.Request,
		)
	}
	if err := k.refuseDeclared(d.Handler); err != nil {
		return nil, err
	}
	d.Define = definedBy(p.server.file, p.definition)
	w := &plan{root: p.root}
	// A name such as cat_feed.go is not safe: the go command interprets the suffix of cat_test.go and cat_linux.go.
	request, handler := path.Join(k.hub.dir, fileName(d.Request)), k.beside(fileName(o.Name))
	if !streams {
		if err := w.render(request, "subresource/request.go", d); err != nil {
			return nil, err
		}
	}
	template := "subresource/" + o.Form
	if err := w.render(handler, template+".go", d); err != nil {
		return nil, err
	}
	if d.Define != "" && (form.tested || !streams) {
		if err := w.render(k.beside(o.Name+"_test.go"), template+"_test.go", d); err != nil {
			return nil, err
		}
	}
	builder := p.server.importName(library) + ".Action"
	if streams {
		builder = p.server.use(library+"/stream", "stream") + "." + form.builder
	}
	subresource := fmt.Sprintf("%s(%q, %s)", builder, o.Name, d.Handler)
	if call := k.call("Subresources"); call != nil {
		if n := len(call.Args); n > 0 && !p.server.comma(call.Args[n-1].End(), call.Rparen) {
			subresource = ", " + subresource
		}
		p.server.insert(call.Rparen, subresource)
	} else {
		k.addCall("Subresources(" + subresource + ")")
	}
	files, err := k.addHook(w, o.Options, "k8s.io/client-go")
	if err != nil {
		return nil, err
	}
	if streams {
		return &Result{Files: files, Next: []string{
			"go mod tidy   # adds the dependencies of package stream",
			"edit " + p.show(handler) + "   # " + form.what,
		}}, nil
	}
	return &Result{Files: files, Packages: []string{p.show(k.hub.dir)}, Next: []string{
		"edit " + p.show(request) + "   # add fields to the request, then run annex generate",
		"edit " + p.show(handler) + "   # implement the action",
	}}, nil
}

// subresource returns the position of a custom subresource in the kind's registration.
func (k *projectKind) subresource(name string) token.Pos {
	var at token.Pos
	call := k.call("Subresources")
	if call == nil {
		return at
	}
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && k.project.server.stringOf(lit) == name {
				at = lit.Pos()
			}
			return true
		})
	}
	return at
}

// definedBy returns the call of the function without parameters that returns the definition, or an empty string.
func definedBy(f *ast.File, definition *ast.CompositeLit) string {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Pos() <= definition.Pos() && definition.End() <= fn.End() &&
			fn.Recv == nil && fn.Type.Params.NumFields() == 0 && fn.Type.Results.NumFields() == 1 {
			return fn.Name.Name + "()"
		}
	}
	return ""
}
