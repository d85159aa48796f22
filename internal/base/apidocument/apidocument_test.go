package apidocument

import (
	"errors"
	"strings"
	"testing"
)

func TestJoin(t *testing.T) {
	answers := map[string]string{
		Index: `{"paths": {"api/v1": {"serverRelativeURL": "/d/core"}, "apis": {"serverRelativeURL": "/d/none"},
			"apis/shop.example.com": {"serverRelativeURL": "/d/none"}, "apis/shop.example.com/v1": {"serverRelativeURL": "/d/shop"},
			"a/b/shop.example.com/v1": {"serverRelativeURL": "/d/queries"},
			"apis/rbac.authorization.k8s.io/v1": {"serverRelativeURL": "/d/none"}}}`,
		"/d/shop": `{"openapi": "3.0.0", "info": {"title": "shop", "version": "v1"},
			"paths": {"/b": {"x": 1}}, "components": {"schemas": {"A": {"a": 1}}}}`,
		"/d/queries": `{"openapi": "3.0.0", "info": {"title": "shop", "version": "v1"},
			"paths": {"/a": {}, "/b": {"x": 2}}, "components": {"schemas": {"B": {}}}}`,
	}
	read := func(path string) ([]byte, error) {
		text, ok := answers[path]
		if !ok {
			return nil, errors.New("not asked for: " + path)
		}
		return []byte(text), nil
	}
	document, err := Join(read, func(group string) bool { return !IsForeign(group) })
	if err != nil {
		t.Fatal(err)
	}
	if document.Info.Title != "shop" || len(document.Paths) != 2 || len(document.Components.Schemas) != 2 {
		t.Errorf("%+v", document)
	}
	text, err := document.Text()
	if err != nil || !strings.HasPrefix(string(text), "{\n  \"openapi\": \"3.0.0\",") {
		t.Errorf("%s, %v", text, err)
	}
	for path, answer := range map[string]string{Index: "no JSON", "/d/shop": "<html>"} {
		broken := func(asked string) ([]byte, error) {
			if asked == path {
				return []byte(answer), nil
			}
			return read(asked)
		}
		if _, err := Join(broken, func(group string) bool { return !IsForeign(group) }); !says(err, "read the ") {
			t.Errorf("%s answers %s: %v", path, answer, err)
		}
	}
	refused := func(string) ([]byte, error) { return nil, errors.New("refused") }
	if _, err := Join(refused, IsForeign); !says(err, "refused") {
		t.Errorf("an unreachable server: %v", err)
	}
}

func says(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

func TestIsForeign(t *testing.T) {
	for group, want := range map[string]bool{"": true, "apps": true, "rbac.authorization.k8s.io": true,
		"shop.example.com": false, "xk8s.io": false, "demo": false} {
		if IsForeign(group) != want {
			t.Errorf("%q: %t", group, !want)
		}
	}
}
