package structural_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/structural"
)

var crateKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Crate"}

// definitionOf returns the definition of crates with a schema. more is inserted behind the schema.
func definitionOf(schema, more string) string {
	return `{"metadata":{"name":"crates.example.com"},"spec":{"group":"example.com","names":{"plural":"crates","kind":"Crate"},
		"scope":"Namespaced",
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}` + more + `}]}}`
}

func TestNew_definitionsThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ definition, want string }{
		"no JSON":     {"{", "read the definition: "},
		"no versions": {`{"spec":{}}`, "the definition must have only the version v1"},
		"another version": {strings.Replace(definitionOf(`{"type":"object"}`, ""), `"name":"v1"`, `"name":"v2"`, 1),
			"the definition must have only the version v1"},
		"no schema":            {`{"spec":{"versions":[{"name":"v1"}]}}`, "the definition has no schema"},
		"no structural schema": {definitionOf(`{"type":"object","properties":{"a":{"$ref":"#/definitions/a"}}}`, ""), "schema: "},
	} {
		if _, err := structural.New(crateKind, reflect.TypeFor[crate](), test.definition, false); err == nil ||
			!strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
	if _, err := structural.NewMessage(crateKind, reflect.TypeFor[crate](), "{"); err == nil ||
		!strings.HasPrefix(err.Error(), "read the schema: ") {
		t.Errorf("a message whose schema is no JSON: %v", err)
	}
}

func TestNew_subresources(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		more           string
		status         bool
		served, scaled bool
	}{
		"nothing is said":            {"", false, false, false},
		"nothing is said, but it is": {"", true, true, false},
		"none":                       {`,"subresources":{}`, true, false, false},
		"a status":                   {`,"subresources":{"status":{}}`, false, true, false},
		"a scale, which is no status": {`,"subresources":{"scale":{"specReplicasPath":".spec.a","statusReplicasPath":".status.a"}}`,
			true, false, true},
		"a deprecated version": {`,"deprecated":true,"deprecationWarning":"use v2"`, false, false, false},
	} {
		v, err := structural.New(crateKind, reflect.TypeFor[crate](), definitionOf(`{"type":"object"}`, test.more), test.status)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if v.HasStatus() != test.served || (v.Scale() != nil) != test.scaled {
			t.Errorf("%s: /status is served: %v, want %v; /scale: %v", name, v.HasStatus(), test.served, v.Scale())
		}
		deprecated, warning := v.Deprecated()
		if want := strings.Contains(test.more, "deprecated"); deprecated != want || want && warning != "use v2" {
			t.Errorf("%s: deprecated %v, %q", name, deprecated, warning)
		}
	}
}

func TestValidate_documents(t *testing.T) {
	t.Parallel()
	v, err := structural.New(crateKind, reflect.TypeFor[crate](), definitionOf(`{"type":"object","required":["sizes"],"properties":{
		"sizes":{"type":"object","maxProperties":2,"additionalProperties":{"type":"integer","minimum":1},
			"x-kubernetes-validations":[{"rule":"!('z' in self)","message":"z is taken"},
				{"rule":"self.size() >= oldSelf.size()","message":"sizes stay"}]}}}`, ""), false)
	if err != nil {
		t.Fatal(err)
	}
	doc := func(sizes map[string]any) map[string]any {
		d := map[string]any{"apiVersion": "example.com/v1", "kind": "Crate", "metadata": map[string]any{"name": "a", "namespace": "lab"}}
		if sizes != nil {
			d["sizes"] = sizes
		}
		return d
	}
	for name, test := range map[string]struct {
		doc  map[string]any
		want string
	}{
		"valid":            {doc(map[string]any{"a": int64(1)}), ""},
		"a required field": {doc(nil), "sizes: Required value"},
		"a bound": {doc(map[string]any{"a": int64(0)}),
			"sizes.a: Invalid value: 0: sizes.a in body should be greater than or equal to 1"},
		"a number of them": {doc(map[string]any{"a": int64(1), "b": int64(1), "c": int64(1)}),
			"sizes: Too many: 3: must have at most 2 items"},
		"a type": {doc(map[string]any{"a": "x"}), `sizes.a: Invalid value: "string": sizes.a in body must be of type integer`},
		"a rule": {doc(map[string]any{"z": int64(1)}), "z is taken"},
		"a name in a place": {func() map[string]any {
			d := doc(map[string]any{"a": int64(1)})
			d["metadata"] = map[string]any{"name": "A", "namespace": "lab"}
			return d
		}(), "metadata.name: Invalid value"},
	} {
		errs := v.Validate(t.Context(), test.doc)
		if (len(errs) == 0) != (test.want == "") || len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, errs, test.want)
		}
	}
	update := func(doc map[string]any) map[string]any {
		doc["metadata"].(map[string]any)["resourceVersion"] = "1"
		return doc
	}
	old := update(doc(map[string]any{"a": int64(1), "b": int64(1)}))
	if errs := v.ValidateUpdate(t.Context(), update(doc(map[string]any{"a": int64(1)})), old); len(errs) != 1 ||
		!strings.Contains(errs[0].Error(), "sizes stay") {
		t.Errorf("an update that a rule of changes refuses: %v", errs)
	}
	// A value that was stored before a rule existed may stay.
	before := update(doc(map[string]any{"a": int64(0)}))
	if errs := v.ValidateUpdate(t.Context(), update(doc(map[string]any{"a": int64(0)})), before); len(errs) != 0 {
		t.Errorf("an update that leaves an old mistake alone: %v", errs)
	}
}

func TestWithKind_sharesRules(t *testing.T) {
	t.Parallel()
	v := newCrate(t)
	other := v.WithKind(schema.GroupVersionKind{Group: "b.example.com", Version: "v1", Kind: "Box"})
	doc := map[string]any{
		"apiVersion": "b.example.com/v1",
		"kind":       "Box",
		"metadata":   map[string]any{"name": "a", "namespace": "lab"},
		"sizes":      int64(1),
	}
	if errs := other.Validate(t.Context(), doc); len(errs) != 1 || errs[0].Field != "sizes" {
		t.Errorf("errors are %v", errs)
	}
	other.SetScope(true)
	if !v.Namespaced() || other.Namespaced() {
		t.Error("the scope of one is that of the other")
	}
}
