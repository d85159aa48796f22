package query

import "testing"

func TestWithoutManagedFields(t *testing.T) {
	for name, test := range map[string]struct{ item, want string }{
		"last":          {`{"metadata":{"name":"a","managedFields":[{"manager":"x"}]},"spec":{}}`, `{"metadata":{"name":"a"},"spec":{}}`},
		"first":         {`{"metadata":{"managedFields":[],"name":"a"}}`, `{"metadata":{"name":"a"}}`},
		"first, spaced": {`{"metadata": { "managedFields" : [ 1 ] , "name":"a"}}`, `{"metadata": { "name":"a"}}`},
		"between":       {`{"metadata":{"name":"a","managedFields":null,"uid":"1"}}`, `{"metadata":{"name":"a","uid":"1"}}`},
		"alone":         {`{"metadata":{"managedFields":[{}]}}`, `{"metadata":{}}`},
		"behind the spec": {`{"spec":{"metadata":{"managedFields":1}},"metadata":{"managedFields":2}}`,
			`{"spec":{"metadata":{"managedFields":1}},"metadata":{}}`},
		"of a template": {`{"spec":{"metadata":{"managedFields":1}},"metadata":{"name":"a"}}`,
			`{"spec":{"metadata":{"managedFields":1}},"metadata":{"name":"a"}}`},
		"no metadata": {`{"a":"managedFields","managedFields":1}`, `{"a":"managedFields","managedFields":1}`},
		"null":        {`{"metadata":null,"managedFields":1}`, `{"metadata":null,"managedFields":1}`},
		"none":        {`{"metadata":{"name":"a"}}`, `{"metadata":{"name":"a"}}`},
		"an escaped name": {`{"metadata":{"a":"\"managedFields\"","b":9007199254740993}}`,
			`{"metadata":{"a":"\"managedFields\"","b":9007199254740993}}`},
		"with odd numbers": {`{"metadata":{"n":1e400,"managedFields":[]}}`, `{"metadata":{"n":1e400}}`},
	} {
		before := test.item
		item := []byte(test.item)
		got, err := withoutManagedFields(item)
		if err != nil || string(got) != test.want || string(item) != before {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, test.want)
		}
	}
	for _, bad := range []string{`["managedFields"]`, `{"metadata":{"managedFields":`, `"managedFields"`} {
		if got, err := withoutManagedFields([]byte(bad)); err == nil {
			t.Errorf("%s becomes %s", bad, got)
		}
	}
}
