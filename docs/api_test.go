package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/annexapi/annex"
	listed = "reference/api.txt"
)

// TestPublicAPI_matchesList compares the exported names of the library with
// reference/api.txt, so that a change of them is seen in review. UPDATE=1 writes the
// list. What may change when is in VERSIONING.md.
func TestPublicAPI_matchesList(t *testing.T) {
	t.Parallel()
	now := publicAPI(t)
	for _, line := range now {
		if strings.Contains(line, "internal/") {
			t.Errorf("users cannot name a type of an internal package: %s", line)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(listed, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(listed)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range before {
		if !slices.Contains(now, line) {
			t.Errorf("gone or changed: %s", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			t.Errorf("not in %s: %s", listed, line)
		}
	}
	if t.Failed() {
		t.Log("if VERSIONING.md allows it: UPDATE=1 go test ./docs")
	}
}

// publicAPI has a line for each exported name, field and method of the packages that
// users can import.
func publicAPI(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Name", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	exports := map[string]string{}
	var public []string
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export, Name string }
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if (p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/")) && !strings.Contains(p.ImportPath, "/internal/") &&
			p.Name != "main" &&
			p.Export != "" {
			public = append(public, p.ImportPath)
		}
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	imports := importer.ForCompiler(token.NewFileSet(), "gc", lookup)
	var lines []string
	for _, path := range public {
		p, err := imports.Import(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, name := range p.Scope().Names() {
			if object := p.Scope().Lookup(name); object.Exported() {
				for _, line := range describe(object) {
					lines = append(lines, short(p)+": "+line)
				}
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

func short(p *types.Package) string {
	if p.Path() == module {
		return "annex"
	}
	if path, ours := strings.CutPrefix(p.Path(), module+"/"); ours {
		return path
	}
	return p.Path()
}

func typeString(t types.Type) string { return types.TypeString(unnamed(t), short) }

// unnamed is a signature without the names of its parameters, which are no promise.
func unnamed(t types.Type) types.Type {
	signature, ok := t.(*types.Signature)
	if !ok {
		return t
	}
	tuple := func(all *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range all.Variables() {
			vars = append(vars, types.NewParam(token.NoPos, nil, "", unnamed(v.Type())))
		}
		return types.NewTuple(vars...)
	}
	return types.NewSignatureType(nil, nil, nil, tuple(signature.Params()), tuple(signature.Results()), signature.Variadic())
}

func describe(object types.Object) []string {
	switch o := object.(type) {
	case *types.Const:
		return []string{fmt.Sprintf("const %s %s = %s", o.Name(), typeString(o.Type()), o.Val())}
	case *types.Var:
		return []string{fmt.Sprintf("var %s %s", o.Name(), typeString(o.Type()))}
	case *types.Func:
		return []string{"func " + o.Name() + parameters(o.Signature().TypeParams()) + strings.TrimPrefix(typeString(o.Type()), "func")}
	case *types.TypeName:
		return describeType(o)
	}
	return []string{object.String()}
}

func describeType(o *types.TypeName) []string {
	if o.IsAlias() {
		return []string{fmt.Sprintf("type %s = %s", o.Name(), typeString(types.Unalias(o.Type())))}
	}
	named := o.Type().(*types.Named)
	head := "type " + o.Name() + parameters(named.TypeParams())
	var lines []string
	switch u := named.Underlying().(type) {
	case *types.Struct:
		lines = append(lines, head+" struct")
		for field := range u.Fields() {
			if field.Exported() {
				embedded := ""
				if field.Embedded() {
					embedded = " (embedded)"
				}
				lines = append(lines, fmt.Sprintf("%s struct, %s %s%s", head, field.Name(), typeString(field.Type()), embedded))
			}
		}
	case *types.Interface:
		lines = append(lines, head+" interface")
		for method := range u.Methods() {
			if method.Exported() {
				lines = append(lines, fmt.Sprintf("%s interface, %s%s", head, method.Name(), strings.TrimPrefix(typeString(method.Type()), "func")))
			} else {
				lines = append(lines, head+" interface, with methods that are not exported")
			}
		}
		for embedded := range u.EmbeddedTypes() {
			lines = append(lines, fmt.Sprintf("%s interface, %s", head, typeString(embedded)))
		}
		return lines
	default:
		lines = append(lines, head+" "+typeString(u))
	}
	values := types.NewMethodSet(named)
	for selection := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if !selection.Obj().Exported() {
			continue
		}
		receiver := "*" + o.Name()
		if values.Lookup(selection.Obj().Pkg(), selection.Obj().Name()) != nil {
			receiver = o.Name()
		}
		lines = append(
			lines,
			fmt.Sprintf("method (%s) %s%s", receiver, selection.Obj().Name(), strings.TrimPrefix(typeString(selection.Type()), "func")),
		)
	}
	return lines
}

func parameters(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var all []string
	for p := range list.TypeParams() {
		all = append(all, p.Obj().Name()+" "+typeString(p.Constraint()))
	}
	return "[" + strings.Join(all, ", ") + "]"
}
