package structural_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/structural"
)

// box is a kind whose spec keeps unknown fields.
type box struct {
	metav1.TypeMeta   `        json:",inline"`
	metav1.ObjectMeta `        json:"metadata"`
	Spec              boxSpec `json:"spec"`
}

func (b *box) DeepCopyObject() runtime.Object { copied := *b; return &copied }

type boxSpec struct {
	Copies int64 `json:"copies,omitempty"`

	unknown map[string]json.RawMessage
}

func (s *boxSpec) UnmarshalJSON(data []byte) error {
	type fields boxSpec
	if err := json.Unmarshal(data, (*fields)(s)); err != nil {
		return err
	}
	s.unknown = nil
	if err := json.Unmarshal(data, &s.unknown); err != nil {
		return err
	}
	delete(s.unknown, "copies")
	return nil
}

func (s boxSpec) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	for name, value := range s.unknown {
		all[name] = value
	}
	if s.Copies != 0 {
		all["copies"] = s.Copies
	}
	return json.Marshal(all)
}

const boxes = `{"metadata":{"name":"boxes.example.com"},"spec":{"group":"example.com","names":{"plural":"boxes","kind":"Box"},"scope":"Namespaced",
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{
			"copies":{"type":"integer","default":1},
			"lid":{"type":"object","properties":{"colour":{"type":"string"}}}}}}}}}]}}`

func TestVersion_structWithUnknownFields(t *testing.T) {
	t.Parallel()
	v, err := structural.New(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Box"}, reflect.TypeFor[box](), boxes, false)
	if err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		`{}`:                       `{"copies":1}`,
		`{"other":{"a":1}}`:        `{"copies":1,"other":{"a":1}}`,
		`{"copies":0,"other":"b"}`: `{"copies":0,"other":"b"}`,
		`{"copies":7}`:             `{"copies":7}`,
	} {
		var doc map[string]any
		if err := json.Unmarshal([]byte(`{"metadata":{},"spec":`+spec+`}`), &doc); err != nil {
			t.Fatal(err)
		}
		merged, err := v.FillMerged(doc)
		if err != nil {
			t.Fatal(err)
		}
		stored := &box{}
		data := encoded(t, map[string]any{"metadata": map[string]any{}, "spec": json.RawMessage(spec)})
		if err := json.Unmarshal(data, stored); err != nil {
			t.Fatal(err)
		}
		v.FillStored(stored, data)
		for way, obj := range map[string]runtime.Object{"merged": merged, "stored": stored} {
			plain, err := v.Plain(obj)
			if err != nil {
				t.Fatal(err)
			}
			if got := decoded(t, encoded(t, plain["spec"])); !reflect.DeepEqual(got, decoded(t, []byte(want))) {
				t.Errorf("%s, %s, becomes %v, want %s", spec, way, got, want)
			}
		}
	}
}

func TestVersion_strictInStructWithUnknownFields(t *testing.T) {
	t.Parallel()
	v, err := structural.New(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Box"}, reflect.TypeFor[box](), boxes, false)
	if err != nil {
		t.Fatal(err)
	}
	outer := errors.New(`unknown field "other"`)
	for data, test := range map[string]struct {
		given error
		want  string
	}{
		`{"spec":{"copies":1,"lid":{"colour":"red"},"else":{"a":1}}}`: {nil, ""},
		`{"spec":{"lid":{"color":"red"}}}`:                            {nil, `strict decoding error: unknown field "spec.lid.color"`},
		`{"spec":{"copies":1,"copies":2}}`:                            {nil, `strict decoding error: duplicate field "spec.copies"`},
		`{"other":1,"spec":{"lid":{"a":1}}}`: {runtime.NewStrictDecodingError([]error{outer}),
			`strict decoding error: unknown field "other", unknown field "spec.lid.a"`},
	} {
		got := ""
		if err := v.Strict([]byte(data), test.given); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: got %s, want %s", data, got, test.want)
		}
	}
}

// crate has no defaults.
type crate struct {
	metav1.TypeMeta   `                 json:",inline"`
	metav1.ObjectMeta `                 json:"metadata"`
	Sizes             map[string]int64 `json:"sizes,omitempty"`
}

func (c *crate) DeepCopyObject() runtime.Object { copied := *c; return &copied }

func newCrate(t *testing.T) *structural.Version {
	t.Helper()
	const crates = `{"metadata":{"name":"crates.example.com"},"spec":{"group":"example.com","names":{"plural":"crates","kind":"Crate"},"scope":"Namespaced",
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"sizes":{"type":"object","additionalProperties":{"type":"integer"}}}}}}]}}`
	v, err := structural.New(
		schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Crate"},
		reflect.TypeFor[crate](),
		crates,
		false,
	)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVersion_nullInMapWithoutDefaults(t *testing.T) {
	t.Parallel()
	v := newCrate(t)
	data := []byte(`{"metadata":{"name":"a"},"sizes":{"a":null,"b":0,"c":1}}`)
	decoded := &crate{}
	if err := json.Unmarshal(data, decoded); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Decode(data, decoded, nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int64{"b": 0, "c": 1}; !reflect.DeepEqual(decoded.Sizes, want) || decoded.Name != "a" {
		t.Errorf("got %v of %q, want %v", decoded.Sizes, decoded.Name, want)
	}
}

func TestVersion_unknownFieldsWhereNoneFit(t *testing.T) {
	t.Parallel()
	v := newCrate(t)
	err := v.Unknown([]byte(`{"sizes":{"a":{"b":1,"c":2},"d":3}}`), nil)
	if want := `strict decoding error: unknown field "sizes.a.b", unknown field "sizes.a.c"`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
