package crds

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const (
	widgetsManifest = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}}`
	gadgetsManifest = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.example.com}}`
)

// definitions is a server that establishes applied definitions at once.
type definitions struct {
	applied []string          // in this order
	refused map[string]string // messages by name
	away    int               // number of requests that fail before others succeed
}

func (d *definitions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := filepath.Base(r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}},
	}
	failure := func(code int, message string) {
		w.WriteHeader(code)
		answer = map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message}
	}
	switch {
	case d.away > 0:
		d.away--
		failure(http.StatusServiceUnavailable, "away")
	case d.refused[name] != "":
		failure(http.StatusUnprocessableEntity, d.refused[name])
	case r.Method == http.MethodPatch:
		d.applied = append(d.applied, name)
	}
	_ = json.NewEncoder(w).Encode(answer) // a failed write appears as an error of the client
}

// takeApplied returns the definitions that were applied since the last call.
func (d *definitions) takeApplied() []string {
	names := d.applied
	d.applied = nil
	return names
}

func TestManifests_applyChanges(t *testing.T) {
	server := &definitions{refused: map[string]string{}}
	host := httptest.NewServer(server)
	defer host.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("gadgets.yaml", gadgetsManifest)
	write("widgets.yaml", widgetsManifest)
	m, err := NewManifests([]string{dir}, nil, &rest.Config{Host: host.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "not applied yet") {
		t.Errorf("before all: %v", err)
	}
	for _, step := range []struct {
		what   string
		change func()
		want   []string
		fails  string
	}{
		{"one is refused, the other is not", func() { server.refused["gadgets.example.com"] = "no gadgets" }, []string{"widgets.example.com"},
			"gadgets.yaml: no gadgets"},
		{"what was refused is tried again, and nothing else", func() { delete(server.refused, "gadgets.example.com"); server.away = 2 },
			[]string{"gadgets.example.com"}, ""},
		{"nothing has changed", func() {}, nil, ""},
		{"one has changed", func() { write("widgets.yaml", widgetsManifest+" # wider") }, nil, ""},
		{"one really has changed", func() {
			write("widgets.yaml", strings.Replace(widgetsManifest, "metadata: {", "metadata: {labels: {a: b}, ", 1))
		}, []string{"widgets.example.com"}, ""},
		{"with a broken file, others wait", func() { write("broken.yaml", "{"); write("widgets.yaml", widgetsManifest) }, nil, "broken.yaml: "},
		{"and go on without it", func() { remove("broken.yaml") }, []string{"widgets.example.com"}, ""},
		{"what is gone stays", func() { remove("widgets.yaml") }, nil, ""},
		{"and is applied when it is back", func() { write("widgets.yaml", widgetsManifest) }, []string{"widgets.example.com"}, ""},
		{"the folder is gone", func() { remove("widgets.yaml"); remove("gadgets.yaml"); remove("") }, nil,
			"folder of CustomResourceDefinitions: open "},
	} {
		step.change()
		err := m.load(t.Context())
		if failed := err != nil; failed != (step.fails != "") || failed && !strings.Contains(err.Error(), step.fails) {
			t.Errorf("%s: %v, want %q", step.what, err, step.fails)
		}
		if got := server.takeApplied(); !slices.Equal(got, step.want) {
			t.Errorf("%s: applied %v, want %v", step.what, got, step.want)
		}
	}
	if err := m.Ready(); err != nil {
		t.Errorf("it was ready: %v", err)
	}
}
