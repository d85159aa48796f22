package schema_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// load writes a package of one file into a folder of this module, which has the required libraries, and loads it.
func load(t *testing.T, source string) (*schema.Packages, string) {
	t.Helper()
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("testdata", "tmp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		os.Remove("testdata")
	})
	if err := os.WriteFile(filepath.Join(dir, "types.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	packages, err := schema.Load(dir, ".")
	if err != nil {
		t.Fatal(err)
	}
	return packages, packages.Paths()[0]
}

const header = `// +groupName=zoo.example.com
// +versionName=v1
package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

`

const object = `
type Cat struct {
	metav1.TypeMeta   ` + "`json:\",inline\"`" + `
	metav1.ObjectMeta ` + "`json:\"metadata,omitempty\"`" + `
	Spec CatSpec ` + "`json:\"spec\"`" + `
	Status CatStatus ` + "`json:\"status,omitempty\"`" + `
}

type CatStatus struct{}
`

func TestVersion(t *testing.T) {
	packages, path := load(t, header+`
// +kubebuilder:resource:scope=Cluster,shortName=ct
// +kubebuilder:subresource:status`+object+`
// CatSpec has a description.
type CatSpec struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=9
	Lives int32 `+"`json:\"lives,omitempty\"`"+`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is for life"
	Name string `+"`json:\"name\"`"+`
}
`)
	definitions, err := packages.Version(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(definitions["Cat"].Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"group":"zoo.example.com","names":{"plural":"cats","singular":"cat",` +
		`"shortNames":["ct"],"kind":"Cat","listKind":"CatList"},"scope":"Cluster",` +
		`"versions":[{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","required":["spec"],` +
		`"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},` +
		`"spec":{"type":"object","required":["name"],"properties":{"lives":{"type":"integer","format":"int32","default":9,"minimum":1},` +
		`"name":{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf","message":"is for life"}]}}},` +
		`"status":{"type":"object"}}}},"subresources":{"status":{}}}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestVersion_subresources_areOfKindMarkers(t *testing.T) {
	const field = "\n\ntype CatSpec struct {\n\t// +kubebuilder:validation:MaxLength=20\n\tName string `json:\"name\"`\n}\n"
	for markers, want := range map[string]string{
		"":                                   "null",
		"// +kubebuilder:resource:path=cats": "null",
		"// +kubebuilder:printcolumn:name=A,type=string,JSONPath=`.spec.name`":    "null",
		"// +kubebuilder:object:root=false":                                       "null",
		"// +kubebuilder:object:root=true":                                        "{}",
		"// +kubebuilder:object:root=true\n\n// Cat is a pet.":                    "{}",
		"// +kubebuilder:subresource:status":                                      `{"status":{}}`,
		"// +kubebuilder:subresource:scale:specpath=.spec.n,statuspath=.status.n": `{"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}}`,
	} {
		packages, path := load(t, header+markers+object+field)
		definitions, err := packages.Version(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(definitions["Cat"].Spec.Versions[0].Subresources)
		if err != nil || string(got) != want {
			t.Errorf("%s: subresources are %s, %v; want %s", markers, got, err, want)
		}
	}
}

func TestVersion_noMarkers_isNil(t *testing.T) {
	packages, path := load(
		t,
		header+"// +kubebuilder:object:root=true\n// +kubebuilder:rbac:groups=a,verbs=get"+object+"\n\ntype CatSpec struct{}\n",
	)
	definitions, err := packages.Version(path)
	if err != nil || len(definitions) > 0 {
		t.Errorf("got %v, %v", definitions, err)
	}
}

func TestVersion_misplacedMarker_isProblem(t *testing.T) {
	for name, test := range map[string]struct {
		spec, want string
		line       int
	}{
		"a typing mistake": {
			"// +kubebuilder:validation:Minimun=3\n\tLives int32 `json:\"lives\"`",
			"unknown marker +kubebuilder:validation:Minimun: did you mean +kubebuilder:validation:Minimum?", 19,
		},
		"no marker at all": {
			"// +kubebuilder:colour=red\n\tLives int32 `json:\"lives\"`",
			"unknown marker +kubebuilder:colour: remove it, or use a marker of controller-tools", 19,
		},
		"a typing mistake behind which an argument stands": {
			"// +kubebuilder:validation:XValidaton:rule=\"self > 0\"\n\tLives int32 `json:\"lives\"`",
			"unknown marker +kubebuilder:validation:XValidaton:rule: did you mean +kubebuilder:validation:XValidation:rule?", 19,
		},
		"a typing mistake in an argument": {
			"// +kubebuilder:validation:XValidation:rull=\"self > 0\"\n\tLives int32 `json:\"lives\"`",
			"+kubebuilder:validation:XValidation has no argument rull: did you mean rule?", 19,
		},
		"an argument that there is not": {
			"// +kubebuilder:externalDocs:url=a,colour=red\n\tLives int32 `json:\"lives\"`",
			"+kubebuilder:externalDocs has no argument colour: it has description, url", 19,
		},
		"a typing mistake in a marker of the deep copies": {
			"// +kubebuilder:object:gnerate=false\n\tLives int32 `json:\"lives\"`",
			"unknown marker +kubebuilder:object:gnerate: did you mean +kubebuilder:object:generate?", 19,
		},
		"a typing mistake in another tool's family": {
			"// +kubebuilder:rbca:groups=a\n\tLives int32 `json:\"lives\"`",
			"unknown marker +kubebuilder:rbca:groups: did you mean +kubebuilder:rbac:groups?", 19,
		},
		"a type that is made of itself": {
			"// +kubebuilder:validation:MaxItems=3\n\tNodes []Node `json:\"nodes,omitempty\"`\n}\n\ntype Node struct {\n\t// +optional\n\tNext " +
				"*Node `json:\"next,omitempty\"`",
			"spec.nodes[].next: the Go type Node is recursive, which a schema cannot express: add " +
				"+kubebuilder:pruning:PreserveUnknownFields and " +
				"+kubebuilder:validation:Schemaless above the field", 25,
		},
		"a type's marker at a field": {
			"// +kubebuilder:subresource:status\n\tLives int32 `json:\"lives\"`",
			"+kubebuilder:subresource:status has no effect here: move it above a type", 19,
		},
		"a value of the wrong type": {
			"// +kubebuilder:validation:Minimum=few\n\tLives int32 `json:\"lives\"`",
			"few", 19,
		},
		"a rule for another type": {
			"// +kubebuilder:validation:MaxLength=3\n\tLives int32 `json:\"lives\"`",
			"must apply maxlength to a textual value", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			packages, path := load(t, header+object+"\n\ntype CatSpec struct {\n\t"+test.spec+"\n}\n")
			_, err := packages.Version(path)
			problems := schema.ProblemsOf(err)
			if len(problems) != 1 || !strings.Contains(problems[0].Message, test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if test.line != 0 && problems[0].Line != test.line || filepath.Base(problems[0].File) != "types.go" {
				t.Errorf("at %s:%d", problems[0].File, problems[0].Line)
			}
		})
	}
}

func TestSchemaPatch_fieldAndType(t *testing.T) {
	packages, path := load(t, header+`
// +annex:schema={"properties":{"metadata":{"properties":{"name":{"type":"string","maxLength":9}}}}}
// +kubebuilder:subresource:status`+object+`
// +annex:schema={"oneOf":[{"required":["name"]}],"allOf":[{"maxProperties":2}],"maxProperties":3}
type CatSpec struct {
	// +optional
	// +annex:schema={"maxLength":9,"items":{"nullable":true}}
	Names []string `+"`json:\"names,omitempty\"`"+`
	// +optional
	// +annex:schema={"maxLength":4}
	Name Word `+"`json:\"name,omitempty\"`"+`
}

// +kubebuilder:validation:MaxLength=7
// +annex:schema={"maxLength":3,"pattern":"a=b:c"}
type Word string
`)
	definitions, err := packages.Version(path)
	if err != nil {
		t.Fatal(err)
	}
	properties := definitions["Cat"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	for name, want := range map[string]string{
		"metadata": `{"type":"object","properties":{"name":{"type":"string","maxLength":9}}}`,
		"spec": `{"type":"object","maxProperties":3,"allOf":[{"maxProperties":2}],"oneOf":[{"required":["name"]}],"properties":{` +
			`"name":{"type":"string","maxLength":4,"pattern":"a=b:c"},` +
			`"names":{"type":"array","maxLength":9,"items":{"type":"string","nullable":true}}}}`,
	} {
		if got, err := json.Marshal(properties[name]); err != nil || string(got) != want {
			t.Errorf("%s is\n%s, %v, want\n%s", name, got, err, want)
		}
	}
}

func TestSchemaPatch_problems(t *testing.T) {
	for value, want := range map[string]string{
		`[]`:                            "the value is not a JSON object",
		`null`:                          "the value is not a JSON object: write +annex:schema={",
		`{"maxLength":`:                 "the value is not a JSON object",
		`{"maxLenght":3}`:               `the value is not a schema: json: unknown field "maxLenght"`,
		`{"maxLength":"a"}`:             "the value is not a schema: ",
		`{"type":"string"}` + twice:     "+annex:schema can be used only once",
		`{"x-kubernetes-map-type":"a"}`: "spec.name: ",
	} {
		packages, path := load(t, header+"// +kubebuilder:subresource:status"+object+
			"\n\ntype CatSpec struct {\n\t// +annex:schema="+value+"\n\tName string `json:\"name\"`\n}\n")
		_, err := packages.Version(path)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "types.go:19:") && !strings.Contains(err.Error(), "types.go:2") {
			t.Errorf("%s: got %v, want %s", value, err, want)
		}
	}
}

const twice = "\n\t// +annex:schema={}"

func TestMessages_schemasWithoutKind(t *testing.T) {
	const kind = object + "\ntype CatSpec struct{}\n"
	packages, path := load(t, header+"// +kubebuilder:resource:path=cats"+kind+`
// Stroke has a description.
type Stroke struct {
	metav1.TypeMeta `+"`json:\",inline\"`"+`
	// +kubebuilder:validation:Minimum=1
	Times int32 `+"`json:\"times\"`"+`
}
`)
	messages, err := packages.Messages(path, []string{"Stroke"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"Stroke":{"type":"object","required":["times"],"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},` +
		`"times":{"type":"integer","format":"int32","minimum":1}}}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	packages, path = load(t, header+"// +kubebuilder:resource:path=cats"+kind+`
type Stroke struct {
	metav1.TypeMeta `+"`json:\",inline\"`"+`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=0
	Times int32 `+"`json:\"times\"`"+`
}
`)
	if _, err := packages.Messages(path, []string{"Stroke"}); err == nil || !strings.Contains(err.Error(), "+kubebuilder:default of times") {
		t.Errorf("a default that its own rule refuses: got %v", err)
	}
}
