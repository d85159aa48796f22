package define

import (
	"reflect"
	"testing"
)

type inner struct {
	Count *int32 `json:"count,omitempty"`
	Plain int32  `json:"plain"`
}

type Base struct {
	Name string `json:"name"`
}

type outer struct {
	Base  `json:",inline"`
	Spec  *inner `json:"spec,omitempty"`
	Plain inner  `json:"in"`
}

func TestFieldAt(t *testing.T) {
	for _, test := range []struct {
		path []string
		want reflect.Type // nil means none
	}{
		{[]string{"name"}, reflect.TypeFor[string]()},
		{[]string{"spec", "count"}, reflect.TypeFor[*int32]()},
		{[]string{"in", "plain"}, reflect.TypeFor[int32]()},
		{[]string{"Spec"}, nil},
		{[]string{"spec", "nothing"}, nil},
		{[]string{"name", "more"}, nil},
		{[]string{"Base"}, nil},
	} {
		got, ok := FieldAt(reflect.TypeFor[outer](), test.path)
		if ok != (test.want != nil) || ok && got != test.want {
			t.Errorf("%v: got %v, %v; want %v", test.path, got, ok, test.want)
		}
	}
}

func TestValueAt(t *testing.T) {
	count := []string{"spec", "count"}
	obj := &outer{Base: Base{Name: "n"}}
	if v := ValueAt(reflect.ValueOf(obj), count, false); v.IsValid() || obj.Spec != nil {
		t.Errorf("looking at nothing: %v, %v", v, obj.Spec)
	}
	if v := ValueAt(reflect.ValueOf(obj), []string{"name"}, false); v.String() != "n" {
		t.Errorf("inlined: %v", v)
	}
	if v := ValueAt(reflect.ValueOf(obj), []string{"spec", "nothing"}, true); v.IsValid() {
		t.Errorf("no such field: %v", v)
	}
	ValueAt(reflect.ValueOf(obj), count, true).SetInt(7)
	if obj.Spec == nil || obj.Spec.Count == nil || *obj.Spec.Count != 7 {
		t.Errorf("filled in: %+v", obj.Spec)
	}
	if v := ValueAt(reflect.ValueOf(obj), count, false); v.Int() != 7 {
		t.Errorf("looking at it: %v", v)
	}
}
