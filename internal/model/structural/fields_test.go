package structural

import (
	"reflect"
	"testing"
)

type measure struct {
	Width  int32
	Height int32 `json:"height"`
}

type remainder struct {
	Height string `json:"height"`
	Note   string `json:"note,omitempty"`
}

type named struct {
	measure        `json:",inline"`
	*remainder     `json:",inline"`
	Name           string                `json:"name"`
	Hidden         string                `json:"-"`
	Others         map[string]*remainder `json:"others,omitempty"`
	Self           []named               `json:"self"`
	private, Plain string                // private is not in JSON
}

func TestFields_namesInJSON(t *testing.T) {
	t.Parallel()
	_ = named{private: ""} // staticcheck would report it as unused
	fs := fieldsOf(reflect.TypeFor[[]*named]())
	for name, index := range map[string][]int{
		"Width": {0, 0}, "height": {0, 1}, "note": {1, 1}, "name": {2}, "others": {4}, "self": {5}, "Plain": {7},
		"Hidden": nil, "-": nil, "private": nil, "size": nil, "remainder": nil, "width": nil,
	} {
		if f, ok := fs.of(reflect.TypeFor[named](), name); ok != (index != nil) || !reflect.DeepEqual(f.Index, index) {
			t.Errorf("%s: got field %v, want %v", name, f.Index, index)
		}
	}
	if _, ok := fs.of(reflect.TypeFor[remainder](), "note"); !ok {
		t.Error("a struct in a map has no fields")
	}
}
