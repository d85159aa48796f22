package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// inMemory collects the files of a generator.
type inMemory map[string]*bytes.Buffer

func (m inMemory) Open(_ *loader.Package, path string) (io.WriteCloser, error) {
	m[path] = &bytes.Buffer{}
	return nopCloser{m[path]}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// controllerGen runs controller-tools' own generator.
func controllerGen(t *testing.T, patterns ...string) map[string]any {
	t.Helper()
	yes := true
	generator := crd.Generator{IgnoreUnexportedFields: &yes, AllowDangerousTypes: &yes, OmitToolVersion: &yes}
	registry := &markers.Registry{}
	if err := generator.RegisterMarkers(registry); err != nil {
		t.Fatal(err)
	}
	roots, err := loader.LoadRootsWithConfig(&packages.Config{}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	files := inMemory{}
	if err := generator.Generate(&genall.GenerationContext{
		Collector:  &markers.Collector{Registry: registry},
		Roots:      roots,
		Checker:    &loader.TypeChecker{NodeFilters: []loader.NodeFilter{generator.CheckFilter()}},
		OutputRule: files,
		InputRule:  genall.InputFromFileSystem,
	}); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for _, text := range files {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text.Bytes(), &definition); err != nil {
			t.Fatal(err)
		}
		all[definition.Name] = content(t, definition)
	}
	return all
}

func content(t *testing.T, d apiextensionsv1.CustomResourceDefinition) any {
	t.Helper()
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestDefinitions_equalControllerGen(t *testing.T) {
	for name, patterns := range map[string][]string{
		"without markers":         {"github.com/annexapi/annex/internal/testing/shop/v1"},
		"with all of the markers": {"./testdata/everything/..."},
	} {
		t.Run(name, func(t *testing.T) {
			want := controllerGen(t, patterns...)
			loaded, err := schema.Load("", patterns...)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := loaded.Export()
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 || len(got) != len(want) {
				t.Errorf("%d definitions, controller-gen writes %d", len(got), len(want))
			}
			for _, d := range got {
				if !reflect.DeepEqual(content(t, d), want[d.Name]) {
					g, _ := yaml.Marshal(content(t, d))
					w, _ := yaml.Marshal(want[d.Name])
					t.Errorf("%s: got\n%s\nwant\n%s", d.Name, g, w)
				}
			}
		})
	}
}

func TestExport_declarativeValidation(t *testing.T) {
	loaded, _ := load(t, header+object+`
type CatSpec struct {
	// +k8s:required
	// +k8s:maxLength=63
	// +k8s:format=k8s-short-name
	Name string `+"`json:\"name,omitempty\"`"+`
	// +k8s:optional
	// +k8s:minimum=1 # at least
	// +k8s:neq=7
	Lives *int32 `+"`json:\"lives,omitempty\"`"+`
	// +k8s:optional
	Colour Colour `+"`json:\"colour,omitempty\"`"+`
	// +k8s:optional
	// +k8s:listType=set
	// +k8s:maxItems=5
	// +k8s:eachVal=+k8s:maxLength=3
	Friends []string `+"`json:\"friends,omitempty\"`"+`
}

// +k8s:enum
type Colour string

const (
	Red   Colour = "red"
	Black Colour = "black"
)
`)
	definitions, unsaid, err := loaded.Export()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(definitions[0].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","required":["name"],"properties":{"colour":{"type":"string","enum":["black","red"]},` +
		`"friends":{"type":"array","maxItems":5,"items":{"type":"string"},"x-kubernetes-list-type":"set"},` +
		`"lives":{"type":"integer","format":"int32","minimum":1},"name":{"type":"string",` +
		`"format":"k8s-short-name","maxLength":63,"minLength":1}}}`
	if string(spec) != want {
		t.Errorf("got\n%s\nwant\n%s", spec, want)
	}
	var messages []string
	for _, p := range unsaid {
		if p.Line == 0 {
			t.Errorf("no line: %v", p)
		}
		messages = append(messages, strings.SplitN(p.Message, " ", 2)[0])
	}
	if got := strings.Join(messages, " "); got != "+k8s:neq +k8s:eachVal" {
		t.Errorf("left out: %s", got)
	}
}

// Every tag of declarative validation is either in the definition or reported, with and without kubebuilder markers
// in the package.
func TestExport_everyTag(t *testing.T) {
	tags := []struct{ tag, of, want string }{ // the fragment of the field's schema; empty if the tag is reported
		{"maxLength=7", "string", `"maxLength":7`},
		{"minLength=3", "string", `"minLength":3`},
		{"maxItems=7", "[]string", `"maxItems":7`},
		{"minItems=3", "[]string", `"minItems":3`},
		{"maxProperties=7", "map[string]string", `"maxProperties":7`},
		{"minProperties=3", "map[string]string", `"minProperties":3`},
		{"maximum=7", "int32", `"maximum":7`},
		{"minimum=3", "int32", `"minimum":3`},
		{"format=k8s-uuid", "string", `"format":"k8s-uuid"`},
		{"immutable", "string", `"rule":"self == oldSelf"`},
		{"listType=set", "[]string", `"x-kubernetes-list-type":"set"`},
		{"maxBytes=7", "string", ""},
		{"eachVal=+k8s:maxLength=3", "[]string", ""},
		{"eachKey=+k8s:maxLength=3", "map[string]string", ""},
		{"enumExclude", "string", ""},
		{"neq=7", "int32", ""},
		{"unique=set", "[]string", ""},
		{"customUnique", "[]string", ""},
		{"forbidden", "string", ""},
		{"monotonic", "int32", ""},
		{"update=NoModify", "string", ""},
		{"unionMember", "*string", ""},
		{"unionDiscriminator", "string", ""},
		{"zeroOrOneOfMember", "*string", ""},
		{"modeDiscriminator", "string", ""},
		{`ifMode("a")=+k8s:required`, "*string", ""},
		{"dependentRequired(f0)", "string", ""},
		{"dependentForbidden(f0)", "string", ""},
		{"ifEnabled(Strict)=+k8s:maxLength=3", "string", ""},
		{"ifDisabled(Strict)=+k8s:maxLength=3", "string", ""},
		{"item(name: a)=+k8s:immutable", "[]string", ""},
		{"subfield(name)=+k8s:immutable", "string", ""},
		{"opaqueType", "string", ""},
		{"customValidation", "string", ""},
		{"alpha(since: 1.35)=+k8s:maxLength=3", "string", ""},
		{"beta(since: 1.35)=+k8s:maxLength=3", "string", ""},
	}
	for name, marker := range map[string]string{"without markers": "", "beside markers": "\n// +kubebuilder:validation:MaxProperties=100"} {
		t.Run(name, func(t *testing.T) {
			var source strings.Builder
			fmt.Fprintf(&source, "%s%s%s\ntype CatSpec struct {\n", header, object, marker)
			for i, test := range tags {
				fmt.Fprintf(&source, "\t// +k8s:optional\n\t// +k8s:%s\n\tF%d %s `json:\"f%d,omitempty\"`\n", test.tag, i, test.of, i)
			}
			source.WriteString("}\n")
			loaded, _ := load(t, source.String())
			definitions, unsaid, err := loaded.Export()
			if err != nil {
				t.Fatal(err)
			}
			spec := definitions[0].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			var named []string
			for _, p := range unsaid {
				tag, _, _ := strings.Cut(p.Message, " ")
				named = append(named, tag)
			}
			for i, test := range tags {
				got, err := json.Marshal(spec.Properties[fmt.Sprint("f", i)])
				if err != nil {
					t.Fatal(err)
				}
				tag := "+k8s:" + regexp.MustCompile(`^\w+`).FindString(test.tag)
				if !strings.Contains(string(got), test.want) || slices.Contains(named, tag) != (test.want == "") {
					t.Errorf("+k8s:%s of a %s is %s, named: %v; want %s", test.tag, test.of, got, named, test.want)
				}
			}
		})
	}
}

func TestExport_noStorageVersion_storesNewest(t *testing.T) {
	loaded, err := schema.Load(
		"",
		"github.com/annexapi/annex/internal/testing/shop/v1",
		"github.com/annexapi/annex/internal/testing/shop/v1beta1",
	)
	if err != nil {
		t.Fatal(err)
	}
	definitions, notes, err := loaded.Export()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(definitions, func(d apiextensionsv1.CustomResourceDefinition) bool { return d.Spec.Names.Kind == "Widget" })
	for _, v := range definitions[i].Spec.Versions {
		if v.Storage != (v.Name == "v1") {
			t.Errorf("%s: storage %v", v.Name, v.Storage)
		}
	}
	if !slices.ContainsFunc(notes, func(p schema.Problem) bool {
		return p.Message == "widgets.shop.example.com: no version is marked +kubebuilder:storageversion: the newest version, v1, becomes "+
			"the storage version"
	}) {
		t.Errorf("notes: %v", notes)
	}
}
