package gotypes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

func read(t *testing.T, files ...string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		definitions, _, err := Read(filepath.Base(file), f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, definitions...)
	}
	return all
}

// roundTrip writes types into a folder of this module, which has the required libraries, and returns the definitions
// that controller-tools generates from them.
func roundTrip(
	t *testing.T,
	definitions []*apiextensionsv1.CustomResourceDefinition,
) (map[string]*apiextensionsv1.CustomResourceDefinition, []Note) {
	t.Helper()
	dir, err := os.MkdirTemp(".", "tmp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files, notes, err := Write(dir, definitions)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	again, _, err := Write(dir, definitions)
	if err != nil {
		t.Fatalf("written once more: %v", err)
	}
	for _, f := range again {
		if !f.Exists {
			t.Errorf("written once more, %s is another file", f.Path)
		}
	}
	packages, err := schema.Load(dir, "./...")
	if err != nil {
		t.Fatal(err)
	}
	exported, err := packages.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, d := range exported {
		byName[d.Name] = &d
	}
	return byName, notes
}

// differences compares two definitions, with or without descriptions.
func differences(t *testing.T, want, got *apiextensionsv1.CustomResourceDefinition, descriptions bool) []string {
	t.Helper()
	if got == nil {
		return []string{"is missing"}
	}
	var all []string
	diff("", tree(t, want, descriptions), tree(t, got, descriptions), &all)
	return all
}

// tree returns a definition without the parts that differ between writers.
func tree(t *testing.T, d *apiextensionsv1.CustomResourceDefinition, descriptions bool) any {
	t.Helper()
	d = d.DeepCopy()
	d.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	for _, annotation := range notTheirs {
		delete(d.Annotations, annotation)
	}
	if d.Spec.Names.ListKind == "" {
		d.Spec.Names.ListKind = d.Spec.Names.Kind + "List"
	}
	if d.Spec.Names.Singular == "" {
		d.Spec.Names.Singular = strings.ToLower(d.Spec.Names.Kind)
	}
	if c := d.Spec.Conversion; c != nil && c.Strategy == apiextensionsv1.NoneConverter {
		d.Spec.Conversion = nil
	}
	if len(d.Annotations) == 0 {
		d.Annotations = nil
	}
	versions := map[string]any{}
	for _, v := range d.Spec.Versions {
		if v.Subresources != nil && *v.Subresources == (apiextensionsv1.CustomResourceSubresources{}) {
			v.Subresources = nil
		}
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			if len(v.Schema.OpenAPIV3Schema.Properties[name].Properties) == 0 {
				delete(v.Schema.OpenAPIV3Schema.Properties, name) // every object has them
			}
		}
		versions[v.Name] = v
	}
	d.Spec.Versions = nil
	data, err := json.Marshal(map[string]any{"annotations": d.Annotations, "labels": d.Labels, "spec": d.Spec, "versions": versions})
	if err != nil {
		t.Fatal(err)
	}
	var content any
	if err := json.Unmarshal(data, &content); err != nil {
		t.Fatal(err)
	}
	return clean(content, descriptions)
}

// clean sorts required, and removes empty values and descriptions.
func clean(content any, descriptions bool) any {
	switch c := content.(type) {
	case map[string]any:
		if _, is := c["description"].(string); is && !descriptions {
			delete(c, "description")
		}
		if required, ok := c["required"].([]any); ok {
			slices.SortFunc(required, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		for name, value := range c {
			c[name] = clean(value, descriptions)
		}
	case []any:
		for i := range c {
			c[i] = clean(c[i], descriptions)
		}
	}
	return content
}

func diff(at string, want, got any, all *[]string) {
	if reflect.DeepEqual(want, got) {
		return
	}
	w, ok := want.(map[string]any)
	g, also := got.(map[string]any)
	if !ok || !also {
		*all = append(*all, fmt.Sprintf("%s: %s became %s", at, short(want), short(got)))
		return
	}
	names := maps.Clone(w)
	maps.Copy(names, g)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		diff(at+"."+name, w[name], g[name], all)
	}
}

func short(content any) string {
	data, _ := json.Marshal(content)
	if len(data) > 160 {
		return string(data[:160]) + "..."
	}
	return string(data)
}

func TestWrite_constructs_exportIsSame(t *testing.T) {
	for file, want := range map[string]string{
		"testdata/everything.yaml": "workshops.craft.example.com: " + renamed,
		"testdata/bare.yaml":       "",
		"testdata/beyond.yaml":     "attics.craft.example.com: " + renamed,
	} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			definitions := read(t, file)
			exported, notes := roundTrip(t, definitions)
			for _, d := range definitions {
				for _, difference := range differences(t, d, exported[d.Name], false) {
					t.Errorf("%s%s", d.Name, difference)
				}
			}
			var got bytes.Buffer
			for _, n := range notes {
				fmt.Fprintln(&got, n)
			}
			if got.String() != want {
				t.Errorf("notes:\n%s\nwant:\n%s", &got, want)
			}
		})
	}
}

const renamed = "a conversion between the versions only changes the apiVersion: it drops fields that the target version does not have, " +
	"unless you write conversions and pass them to annex.Version\n"

// The definitions of three large projects.
var projects = []struct{ module, version, folder string }{
	{"github.com/cert-manager/cert-manager", "v1.19.1", "deploy/crds"},
	{"sigs.k8s.io/gateway-api", "v1.4.0", "config/crd/experimental"},
	{"sigs.k8s.io/cluster-api", "v1.11.3", "config/crd/bases"},
}

func TestWrite_projects_exportIsSame(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the definitions of other projects")
	}
	equal, described, total := 0, 0, 0
	for _, project := range projects {
		files := definitionsOf(t, project.module, project.version, project.folder)
		definitions := read(t, files...)
		exported, notes := roundTrip(t, definitions)
		for _, d := range definitions {
			total++
			found := differences(t, d, exported[d.Name], false)
			if len(found) == 0 {
				equal++
			}
			if len(differences(t, d, exported[d.Name], true)) == 0 {
				described++
			}
			for _, difference := range found {
				noted := slices.ContainsFunc(notes, func(n Note) bool { return strings.HasPrefix(n.Where, d.Name) })
				if t.Logf("%s%s", d.Name, difference); !noted {
					t.Errorf("%s: differs, but no note says so", d.Name)
				}
			}
		}
	}
	t.Logf("equal in schema: %d of %d definitions; in descriptions, too: %d", equal, total, described)
	if total == 0 {
		t.Error("no definitions found")
	}
}

// definitionsOf returns the files of definitions in a folder of a module, from the module cache.
func definitionsOf(t *testing.T, module, version, folder string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module+"@"+version)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &answer); err != nil || jsonErr != nil {
		t.Skipf("%s cannot be downloaded: %v %s", module, err, answer.Error)
	}
	files, err := filepath.Glob(filepath.Join(answer.Dir, folder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err != nil || !bytes.Contains(text, []byte("kind: CustomResourceDefinition"))
	})
}

func TestGoName(t *testing.T) {
	for field, want := range map[string]string{
		"dnsName":     "DNSName",
		"dnsNames":    "DNSNames",
		"apiVersion":  "APIVersion",
		"x-y":         "XY",
		"$ref":        "Ref",
		"2nd-name":    "Field2ndName",
		"ähre":        "Hre",
		"url":         "URL",
		"podIP":       "PodIP",
		"_":           "Field",
		"Name":        "Name",
		"deepCopy":    "FieldDeepCopy",
		"marshalJSON": "FieldMarshalJSON",
	} {
		if got := goName(field); got != want {
			t.Errorf("goName(%q) = %q, want %q", field, got, want)
		}
	}
}

func TestRead_badInput(t *testing.T) {
	crd := func(spec string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: cats.a.b}\nspec: " + spec
	}
	versions := func(v string) string {
		return crd("{group: a.b, scope: Namespaced, names: {kind: Cat, plural: cats}, versions: [" + v + "]}")
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":      {"# only a comment\n---\n", "f.yaml: is empty: pass a file with a CustomResourceDefinition"},
		"no YAML":      {"a: [b", "f.yaml: document 1 is not valid YAML: "},
		"a list":       {"- a\n- b\n", "f.yaml: document 1 is not valid YAML: "},
		"another kind": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "f.yaml: holds no CustomResourceDefinition, only: Pod p"},
		"v1beta1": {"apiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\nmetadata: {name: cats.a.b}\n",
			"f.yaml: CustomResourceDefinition cats.a.b: has apiVersion apiextensions.k8s.io/v1beta1, which Kubernetes removed in 1.22"},
		"another version": {"apiVersion: example.com/v1\nkind: CustomResourceDefinition\n", `has apiVersion "example.com/v1"`},
		"a typo":          {crd("{gruop: a.b}"), `unknown field "gruop"`},
		"no group":        {crd("{names: {kind: Cat, plural: cats}}"), `spec.group "" is not a DNS name`},
		"a small kind":    {crd("{group: a.b, names: {kind: cat}}"), `spec.names.kind "cat" is not a valid name for a Go type`},
		"no plural":       {crd("{group: a.b, names: {kind: Cat}}"), "spec.names.plural is empty"},
		"no versions":     {versions(""), "has no versions"},
		"a version's name": {versions("{name: v1-beta, served: true, storage: true}"),
			`version "v1-beta" is not a valid name for a Go package`},
		"no schema": {versions("{name: v1, served: true, storage: true}"), "version v1 has no schema"},
		"not structural": {versions("{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: " +
			"{properties: {a: {type: string}}}}}}}"),
			"version v1: the schema is not structural, and clusters reject it too"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Read("f.yaml", strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml: ") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestWrite_existingFile_isKept(t *testing.T) {
	definitions := read(t, "testdata/everything.yaml")
	for name, c := range map[string]struct{ file, text, want string }{
		"a file that differs": {"craft/v1/workshop_types.go", "package v1\n", "workshop_types.go exists with other content"},
		"another group": {"craft/v1/doc.go", "// +groupName=other.example.com\npackage v1\n", "the folder has the group " +
			"other.example.com, not craft.example.com"},
		"another package":        {"craft/v1/x.go", "package craft\n", "the folder has the package craft, not v1"},
		"a type of the name":     {"craft/v1/x.go", "package v1\n\ntype WorkshopList struct{}\n", "x.go has a type WorkshopList already"},
		"code that is none":      {"craft/v1/x.go", "package v1\n\ntype struct\n", "the folder has invalid Go code"},
		"a doc of the same name": {"craft/v1/doc.go", "// Of one's own.\n//\n// +groupName=craft.example.com\npackage v1\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			files, _, err := Write(dir, definitions)
			if c.want == "" {
				if err != nil || slices.ContainsFunc(files, func(f File) bool { return f.Path == c.file }) {
					t.Errorf("got %v, %v", files, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestOptionalString_empty(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"string"}`:                                                         "string",
		`{"type":"string","maxLength":3}`:                                           "string",
		`{"type":"string","pattern":"^a*$"}`:                                        "string",
		`{"type":"string","enum":["a",""]}`:                                         "string",
		`{"type":"string","minLength":1}`:                                           "*string",
		`{"type":"string","pattern":"^a+$"}`:                                        "*string",
		`{"type":"string","enum":["a"]}`:                                            "*string",
		`{"type":"string","format":"uri"}`:                                          "*string",
		`{"type":"string","default":"a"}`:                                           "*string",
		`{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf"}]}`: "*string",
		`{"type":"string","nullable":true}`:                                         "*string",
		`{"type":"array","items":{"type":"string"}}`:                                "[]string",
	} {
		definitions := read(t, "testdata/everything.yaml")[1:]
		version := &definitions[0].Spec.Versions[0]
		var property apiextensionsv1.JSONSchemaProps
		if err := json.Unmarshal([]byte(schema), &property); err != nil {
			t.Fatal(err)
		}
		version.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"word": property},
		}
		files, _, err := Write(t.TempDir(), definitions)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(files[len(files)-1].Text); !strings.Contains(text, "\tWord "+want+" `json:") {
			t.Errorf("%s: is no %s in\n%s", schema, want, text)
		}
	}
}
