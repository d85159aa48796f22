package history

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

func TestChanges(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"nothing":              {`{"a":1}`, `{"a":1}`, `[]`},
		"a field":              {`{"spec":{"a":1,"b":2}}`, `{"spec":{"a":3,"b":2}}`, `[{"path":"spec.a","from":1,"to":3}]`},
		"a field that is new":  {`{"spec":{}}`, `{"spec":{"a":{"b":1}}}`, `[{"path":"spec.a","to":{"b":1}}]`},
		"a field that is gone": {`{"spec":{"a":null}}`, `{"spec":{}}`, `[{"path":"spec.a"}]`},
		"another type":         {`{"spec":{"a":[1]}}`, `{"spec":{"a":{"b":1}}}`, `[{"path":"spec.a","from":[1],"to":{"b":1}}]`},
		"a key to be quoted": {
			`{"metadata":{"labels":{"a.b/c":"1"}}}`, `{"metadata":{"labels":{"a.b/c":"2"}}}`,
			`[{"path":"metadata.labels[\"a.b/c\"]","from":"1","to":"2"}]`,
		},
		"the server's metadata": {
			`{"metadata":{"resourceVersion":"1","generation":1,"managedFields":[1]}}`, `{"metadata":{"resourceVersion":"2","generation":2}}`,
			`[]`,
		},
		"items in another order": {
			`{"c":[{"name":"a","v":1},{"name":"b","v":1}]}`, `{"c":[{"name":"b","v":2},{"name":"a","v":1}]}`,
			`[{"path":"c[name=\"b\"].v","from":1,"to":2}]`,
		},
		"an item that is new": {
			`{"c":[{"name":"a"}]}`, `{"c":[{"name":"b"},{"name":"a"}]}`,
			`[{"path":"c[name=\"b\"]","to":{"name":"b"}}]`,
		},
		"items that share a name": {
			`{"c":[{"name":"a"},{"name":"a"}]}`, `{"c":[{"name":"a"}]}`,
			`[{"path":"c","from":[{"name":"a"},{"name":"a"}],"to":[{"name":"a"}]}]`,
		},
		"values at their places":     {`{"c":[1,2]}`, `{"c":[1,3]}`, `[{"path":"c[1]","from":2,"to":3}]`},
		"lists of different lengths": {`{"c":[1,2]}`, `{"c":[2]}`, `[{"path":"c","from":[1,2],"to":[2]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			changes, more := Changes(object(t, test.from), object(t, test.to), 10)
			got, err := json.Marshal(changes)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want || more {
				t.Errorf("changes %s, more %v, want %s", got, more, test.want)
			}
		})
	}
}

func TestChanges_limit(t *testing.T) {
	from, to := object(t, `{"a":1,"b":1,"c":1}`), object(t, `{"a":2,"b":2,"c":2}`)
	for limit, want := range map[int]bool{2: true, 3: false} {
		if changes, more := Changes(from, to, limit); len(changes) != limit || more != want {
			t.Errorf("with limit %d: %d changes, more %v, want %v", limit, len(changes), more, want)
		}
	}
}

func TestMerge_setsBack(t *testing.T) {
	for name, test := range map[string]struct{ current, old, new, want, conflicts string }{
		"a field":                          {`{"a":2,"b":9}`, `{"a":1,"b":1}`, `{"a":2,"b":1}`, `{"a":1,"b":9}`, ""},
		"a field that was new":             {`{"a":1,"b":9}`, `{"b":1}`, `{"a":1,"b":1}`, `{"b":9}`, ""},
		"a field that was removed":         {`{"b":9}`, `{"a":1}`, `{}`, `{"a":1,"b":9}`, ""},
		"a field that is set back already": {`{"a":1}`, `{"a":1}`, `{"a":2}`, `{"a":1}`, ""},
		"a field that has changed since":   {`{"s":{"a":3}}`, `{"s":{"a":1}}`, `{"s":{"a":2}}`, `{"s":{"a":3}}`, "s.a"},
		"a field that is gone since":       {`{}`, `{"a":1}`, `{"a":2}`, `{}`, "a"},
		"items, which keep their places": {
			`{"c":[{"name":"z"},{"name":"b","v":2},{"name":"a"}]}`, `{"c":[{"name":"b","v":1},{"name":"x"}]}`, `{"c":[{"name":"a"},{"name":"b","v":2}]}`,
			`{"c":[{"name":"z"},{"name":"b","v":1},{"name":"x"}]}`, "",
		},
		"lists without names that have changed since": {`{"c":[1,2,3]}`, `{"c":[1]}`, `{"c":[1,2]}`, `{"c":[1,2,3]}`, "c"},
		"only metadata that people write": {
			`{"metadata":{"uid":"u","labels":{"a":"2"},"resourceVersion":"9"}}`, `{"metadata":{"labels":{"a":"1"},"resourceVersion":"1"}}`,
			`{"metadata":{"labels":{"a":"2"},"resourceVersion":"2"}}`, `{"metadata":{"uid":"u","labels":{"a":"1"},"resourceVersion":"9"}}`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			current := object(t, test.current)
			m := merge{}
			got := m.maps("", current, object(t, test.old), object(t, test.new))
			if want := object(t, test.want); !reflect.DeepEqual(got, want) {
				t.Errorf("set back to %v, want %v", got, want)
			}
			if conflicts := strings.Join(m.conflicts, " "); conflicts != test.conflicts {
				t.Errorf("conflicts %q, want %q", conflicts, test.conflicts)
			}
			if !reflect.DeepEqual(current, object(t, test.current)) {
				t.Errorf("the current object has changed to %v", current)
			}
		})
	}
}

func TestOwnersOf(t *testing.T) {
	entries := []map[string]any{
		{"manager": "whole", "fieldsV1": object(t, `{"f:spec":{}}`)},
		{"manager": "field", "fieldsV1": object(t, `{"f:spec":{"f:a":{}}}`)},
		{"manager": "item", "fieldsV1": object(t, `{"f:spec":{"f:c":{"k:{\"name\":\"x\"}":{"f:v":{}}}}}`)},
		{"manager": "item", "fieldsV1": object(t, `{"f:spec":{"f:c":{"k:{\"name\":\"x\"}":{"f:v":{}}}}}`)},
		{"manager": "none"},
	}
	for path, want := range map[string][]string{
		"spec.a": {"field"}, `spec.c[name="x"].v`: {"item"}, `spec.c[name="y"].v`: {"item"}, "spec.b": {"whole", "field", "item"}, "status.a": nil,
	} {
		if got := ownersOf(entries, path); !slices.Equal(got, want) {
			t.Errorf("owners of %s: %v, want %v", path, got, want)
		}
	}
}
