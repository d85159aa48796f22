package writes

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// FuzzApply compares our reading of configurations as JSON with upstream's, which reads them as YAML.
func FuzzApply(f *testing.F) {
	for _, body := range []string{
		`{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}`, `{"a":1,"b":-1,"c":9223372036854775807,` +
			`"d":9223372036854775808,"e":1e3,"f":1.0,"g":-0}`, `{"a":null,"b":true,"c":[],"d":{}}`, `{"a":[1,"b",{"c":[[]]}]}`,
		` { "a" : "b" } `, "{\n\"a\":\n\"b\"}", "{\r\n\"a\":1}", "{\"a\":\t1}", `{"a":"x y: z # no"}`,
		`{"a":"'","b":"\"","c":"\\","d":"\n\r\b\f\t"}`, `{"a":"\u0041","b":"\/"}`, `{"a":"é"}`, `{"<<":{"a":1}}`,
		`{"a":"*x","b":"&x","c":"!!int 3"}`,
		`{"":1}`, `{"a":1,"a":2}`, `{"a":{"b":1,"b":1}}`, `{"A":1,"a":2}`, `[]`, `null`, `"a"`, `1`, ``, `{`, `{}{}`, `{} `,
		"{\"a\":1}\n---\n{\"b\":2}", `{"yes":"no","1":"2","true":"false","null":"null","~":"~"}`, `{"a":"` + strings.Repeat("x", 1100) + `"}`,
		`{"` + strings.Repeat("x", 1010) + `":1}`,
		"{\"a\":\"b\x7f\"}", "\ufeff{\"a\":1}", `{"a":0001}`, `{"a":"2001-01-01","b":"0x10","c":"1_000","d":".inf"}`, `{"? a":1}`,
		`{"a":"%"}`, `{"-":"-","- ":"- a","|":">"}`,
	} {
		f.Add(body)
	}
	f.Fuzz(compareApply)
}

func compareApply(t *testing.T, body string) {
	c := &call{body: []byte(body)}
	if apply, _ := c.apply(); apply == nil {
		return
	}
	var ours map[string]any
	if _, err := kjson.UnmarshalStrict(c.body, &ours); err != nil {
		t.Fatal(err)
	}
	theirs := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(c.body, &theirs.Object); err != nil {
		t.Fatalf("%q: upstream says %v", body, err)
	}
	if err := yaml.UnmarshalStrict(c.body, &map[string]any{}); err != nil {
		t.Fatalf("%q: upstream warns of %v", body, err)
	}
	if !reflect.DeepEqual(ours, theirs.Object) {
		t.Fatalf("%q: upstream reads %#v, we %#v", body, theirs.Object, ours)
	}
	if recorded, err := yaml.ToJSON(c.body); err != nil || string(recorded) != body {
		t.Fatalf("%q: upstream records %q, %v", body, recorded, err)
	}
}

// FuzzKind compares our reading of the kind of a body with upstream's.
func FuzzKind(f *testing.F) {
	for _, body := range kinds {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if json.Valid([]byte(body)) { // the decoder refuses any other body later
			compareKind(t, body)
		}
	})
}
