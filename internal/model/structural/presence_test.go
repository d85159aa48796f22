package structural_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/annexapi/annex/internal/model/structural"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
)

func TestFillStored_newDefault(t *testing.T) {
	t.Parallel()
	v := stacks(t)
	for _, test := range []struct{ stored, want string }{
		{`{"spec":{}}`, `{"spec":{"copies":1,"note":"fragile","sealed":true,"tags":["a","b"]}}`},
		{`{"spec":{"copies":0,"note":""}}`, `{"spec":{"copies":0,"note":"","sealed":true,"tags":["a","b"]}}`},
		{`{}`, `{"spec":{"copies":1,"note":"fragile","sealed":true,"tags":["a","b"]}}`},
		{`{"spec":{"copies":0,"note":"","sealed":false,"tags":[],"layers":[{"name":"a"},{"name":"b","height":0}]},"status":{"phase":""}}`,
			`{"spec":{"copies":0,"note":"","sealed":false,"tags":[],"layers":[{"name":"a","height":2},{"name":"b","height":0}]}}`},
	} {
		obj := &markedv1.Stack{}
		if err := json.Unmarshal([]byte(test.stored), obj); err != nil {
			t.Fatal(err)
		}
		v.FillStored(obj, []byte(test.stored))
		plain, err := v.Plain(obj)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := json.Unmarshal([]byte(test.want), &want); err != nil {
			t.Fatal(err)
		}
		if got := decoded(t, encoded(t, plain["spec"])); !reflect.DeepEqual(got, decoded(t, encoded(t, want["spec"]))) {
			t.Errorf("%s is read as %v", test.stored, got)
		}
	}
}

func stacks(t *testing.T) *structural.Version {
	t.Helper()
	facts := markedv1.API()
	v, err := structural.New(facts.GroupVersion.WithKind("Stack"), reflect.TypeFor[markedv1.Stack](), facts.CustomResources()["Stack"], true)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decoded(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWriteZeros(t *testing.T) {
	t.Parallel()
	shape := stacks(t).Shape()
	const defaults = `"copies":0,"note":"","sealed":false,"tags":[]`
	for _, test := range []struct {
		shape      *structural.Shape
		data, want string
	}{
		{shape, `{"kind":"Stack","spec":{},"status":{}}`, `{"kind":"Stack","spec":{` + defaults + `},"status":{"phase":""}}`},
		{shape, `{"spec":{"copies":1,"note":"}\"{[","sealed":true,"tags":["]"]}}` + "\n", ""},
		{shape, `{"spec":{"weight":-1.5e3,"sealed":true}}`, `{"spec":{"weight":-1.5e3,"sealed":true,"copies":0,"note":"","tags":[]}}`},
		{shape, `{"spec":null}`, ""},
		{shape, `{"spec":{"copies":1,"note":"x","sealed":true,"tags":[],"layers":[{"name":"a"},` +
			`{"name":"b","height":1}],"rooms":{"x\"y":{}},"roof":null}}`,
			`{"spec":{"copies":1,"note":"x","sealed":true,"tags":[],"layers":[{"name":"a",` +
				`"height":0},{"name":"b","height":1}],"rooms":{"x\"y":{"doors":0}},"roof":null}}`},
		{shape.List(), `{"metadata":{},"items":[{"spec":{}},{"other":1}]}`, `{"metadata":{},"items":[{"spec":{` + defaults + `}},{"other":1}]}`},
		{nil, `{"spec":{}}`, ""},
	} {
		if test.want == "" {
			test.want = test.data
		}
		if got := string(test.shape.WriteZeros([]byte(test.data))); got != test.want {
			t.Errorf("%s becomes\n%s, want\n%s", test.data, got, test.want)
		}
	}
	whole := []byte(`{"kind":"Stack","spec":{"copies":1,"layers":[{"name":"a"}]},"status":{}}`)
	for n := range whole {
		// Truncated JSON must be returned unchanged, without a panic.
		if got := shape.WriteZeros(whole[:n]); string(got) != string(whole[:n]) {
			t.Errorf("%q becomes %q", whole[:n], got)
		}
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	shape := stacks(t).Shape()
	const whole = `{"spec":{"copies":0,"note":"","sealed":false,"tags":[],"layers":[{"name":"a","height":0}]},"status":{"phase":""}}`
	if !shape.Complete([]byte(whole)) {
		t.Error("a whole one is not")
	}
	for _, data := range []string{
		`{}`, `{"spec":{}}`, `[`, ``,
		`{"spec":{"copies":0,"note":"","sealed":false,"tags":[]}}`,
		`{"spec":{"copies":0,"note":"","sealed":false},"status":{"phase":""}}`,
		`{"spec":{"copies":0,"note":"","sealed":false,"tags":[],"layers":[{"name":"a"}]},"status":{"phase":""}}`,
		`{"spec":{"copies":0,"note":"","sealed":false,"tags":[],"roof":{}},"status":{"phase":""}}`,
	} {
		if shape.Complete([]byte(data)) {
			t.Errorf("%s is complete", data)
		}
	}
}

func TestFillMerged_emptyStruct(t *testing.T) {
	t.Parallel()
	v := stacks(t)
	for spec, want := range map[string]any{
		`{"base":{}}`:                  map[string]any{"depth": float64(3)},
		`{"base":{"material":"wood"}}`: map[string]any{"depth": float64(3), "material": "wood"},
		`{}`:                           nil,
	} {
		obj, err := v.FillMerged(decoded(t, []byte(`{"metadata":{},"spec":`+spec+`}`)).(map[string]any))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := v.Plain(obj)
		if err != nil {
			t.Fatal(err)
		}
		if got := decoded(t, encoded(t, plain["spec"])).(map[string]any)["base"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: base becomes %v, want %v", spec, got, want)
		}
	}
}
