package files

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestMergeYAML_keepsCommentsAndStyle(t *testing.T) {
	t.Parallel()
	const file = `# What it is for.
kind: Thing # of ours
apiVersion: v1
metadata:
  # All clients know it by that.
  name: a
  labels: {tier: 'front'}
spec:
  # how many
  replicas: 3 # enough
  size: "small"
  old: true # goes
  ports:
    # the web
    - name: http
      port: 80
    # the rest
    - name: admin
      port: 81 # secret
  args: [a, b]
  words:
    - one # first
    - two # second
`
	const object = `{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","labels":{"tier":"front"}},
		"spec":{"color":"red","replicas":4,"size":"small","ports":[{"name":"new","port":1},{"name":"admin","port":82}],"args":["a","c"],"words":["zero","two"]}}`
	const want = `# What it is for.
kind: Thing # of ours
apiVersion: v1
metadata:
  # All clients know it by that.
  name: a
  labels: {tier: 'front'}
spec:
  color: red
  # how many
  replicas: 4 # enough
  size: "small"
  ports:
    - name: new
      port: 1
    # the rest
    - name: admin
      port: 82 # secret
  args: [a, c]
  words:
    - zero # first
    - two # second
`
	shown, _, ok := visible([]byte(object), true)
	if !ok {
		t.Fatal("it is not visible")
	}
	plain, err := encodeYAML(shown)
	if err != nil {
		t.Fatal(err)
	}
	merged := mergeYAML([]byte(file), shown, plain)
	if string(merged) != want {
		t.Errorf("got:\n%s\nwant:\n%s", merged, want)
	}
	if again := mergeYAML(merged, shown, plain); string(again) != string(merged) {
		t.Errorf("once more, it is\n%s", again)
	}
	for _, other := range []string{"", "a: [", "a: &x 1\nb: *x\n", "- a\n", "a: 1\n---\nb: 2\n"} {
		merged := mergeYAML([]byte(other), shown, plain)
		if !sayTheSame(merged, shown) {
			t.Errorf("%q became\n%s", other, merged)
		}
	}
}

// The merged file always has the content of the stored object, whatever file a person has written.
func FuzzMergedFilesSayWhatIsStored(f *testing.F) {
	for _, file := range []string{"a: 1\n", "spec: {x: [1, {name: y}]}\n", "# c\nspec:\n- a\n- b # d\n", "kind: |\n  text\n", "? a\n: b\n",
		"spec: !!str 1\n"} {
		f.Add(file, `{"a":"yes"}`)
		f.Add(file, `["x",{"name":"y","z":[1,2,{}]},null,1.5]`)
	}
	f.Fuzz(func(t *testing.T, file, spec string) {
		value := []byte(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"},"spec":` + spec + `}`)
		shown, _, ok := visible(value, true)
		if !ok || !json.Valid(value) || strings.Contains(spec, "<<") {
			t.Skip()
		}
		plain, err := encodeYAML(shown)
		if err != nil || !sayTheSame(plain, shown) {
			t.Skip()
		}
		if merged := mergeYAML([]byte(file), shown, plain); !sayTheSame(merged, shown) {
			t.Errorf("%q and %s became\n%s", file, spec, merged)
		}
	})
}

func TestMergeEdit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ base, edit, current, want string }{
		"another field":         {`{"a":1,"b":1}`, `{"a":2,"b":1}`, `{"a":1,"b":3}`, `{"a":2,"b":3}`},
		"the same field":        {`{"a":1}`, `{"a":2}`, `{"a":3}`, `{"a":2}`},
		"removed by a person":   {`{"a":1,"b":1}`, `{"b":1}`, `{"a":3,"b":2}`, `{"b":2}`},
		"removed by a client":   {`{"a":1,"b":1}`, `{"a":1,"b":2}`, `{"b":1}`, `{"b":2}`},
		"both remove":           {`{"a":1}`, `{}`, `{}`, `{}`},
		"changed and removed":   {`{"a":1}`, `{"a":2}`, `{}`, `{"a":2}`},
		"added by both":         {`{}`, `{"a":1}`, `{"b":1}`, `{"a":1,"b":1}`},
		"deep":                  {`{"s":{"a":1,"b":1}}`, `{"s":{"a":2,"b":1}}`, `{"s":{"a":1,"b":3,"c":4}}`, `{"s":{"a":2,"b":3,"c":4}}`},
		"a list is one field":   {`{"l":[1,2]}`, `{"l":[1,2,3]}`, `{"l":[0,1,2]}`, `{"l":[1,2,3]}`},
		"a list left alone":     {`{"l":[1,2]}`, `{"l":[1,2]}`, `{"l":[0]}`, `{"l":[0]}`},
		"an object of a scalar": {`{"a":1}`, `{"a":{"b":1}}`, `{"a":2}`, `{"a":{"b":1}}`},
		"large numbers": {`{"a":9007199254740993}`, `{"a":9007199254740993,"b":1}`, `{"a":9007199254740993}`,
			`{"a":9007199254740993,"b":1}`},
	} {
		merged, ok := mergeEdit([]byte(c.base), []byte(c.edit), []byte(c.current))
		var got, want any
		if !ok || json.Unmarshal(merged, &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %s, want %s", name, merged, c.want)
		}
	}
	if _, ok := mergeEdit([]byte(`{"apiVersion":"v1"}`), []byte(`{"apiVersion":"v2"}`), []byte(`{"apiVersion":"v1"}`)); ok {
		t.Error("two versions were compared")
	}
}
