package define

import (
	"reflect"
	"testing"
)

type cake struct {
	Base    `         json:",inline"`
	Filling *filling `json:"filling,omitempty"`
	Layers  []string `json:"layers"`
	Hidden  string   `json:"-"`
}

type filling struct {
	Flavor string `json:"flavor"`
	Amount int32  `json:"amount"`
}

type many struct {
	A1 int `json:"a1"`
	A2 int `json:"a2"`
	A3 int `json:"a3"`
	A4 int `json:"a4"`
	A5 int `json:"a5"`
	A6 int `json:"a6"`
	A7 int `json:"a7"`
	A8 int `json:"a8"`
	A9 int `json:"a9"`
	B1 int `json:"b1"`
	B2 int `json:"b2"`
	B3 int `json:"b3"`
	B4 int `json:"b4"`
}

func TestMissing(t *testing.T) {
	for name, test := range map[string]struct {
		of   reflect.Type
		path []string
		want string
	}{
		"a typing mistake": {reflect.TypeFor[cake](), []string{"filling", "flavour"}, `Go type define.filling has no field "flavour": ` +
			`did you mean filling.flavor?`},
		"one of what is inlined": {reflect.TypeFor[cake](), []string{"nmae"}, `Go type define.cake has no field "nmae": did you mean name?`},
		"no beginning": {reflect.TypeFor[cake](), []string{"amount"}, `Go type define.cake has no field "amount": did you mean ` +
			`filling.amount?`},
		"nothing near": {reflect.TypeFor[cake](), []string{"price"}, `Go type define.cake has no field "price"; it has name, ` +
			`filling, layers`},
		"of many": {reflect.TypeFor[many](), []string{"price"}, `Go type define.many has no field "price"; it has a1, a2, a3, ` +
			`a4, a5, a6, a7, a8, a9, b1, b2, b3 and 1 more`},
		"below a list": {reflect.TypeFor[cake](), []string{"layers", "name"}, `Go type []string, of layers, has no fields that a ` +
			`path can name`},
		"below a string": {reflect.TypeFor[*cake](), []string{"filling", "flavor", "name"}, `Go type string, of filling.flavor, has ` +
			`no fields that a path can name`},
		"there": {reflect.TypeFor[cake](), []string{"filling", "flavor"}, ""},
	} {
		if got := missing(test.of, test.path); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}
