package builtin

import (
	"net/http"
	"os"
	"testing"

	"sigs.k8s.io/yaml"
)

// The errors and defaults of internal/controlplane/podspec for the templates of its tests are those of a
// kube-apiserver.
func TestPodTemplates(t *testing.T) {
	text, err := os.ReadFile("../../../internal/controlplane/podspec/testdata/templates.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name            string
		Template        map[string]any
		Refused, Warned []string
	}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	b := &both{t: t, theirs: connect(t, host.Admin()), ours: connect(t, start(t))}
	codes, differ := map[int]int{}, 0
	for _, s := range all {
		want := http.StatusCreated
		if len(s.Refused) > 0 {
			want = http.StatusUnprocessableEntity
		}
		object := map[string]any{"apiVersion": "v1", "kind": "PodTemplate", "metadata": map[string]any{"name": "new"}, "template": s.Template}
		code, same := b.same(s.Name, http.MethodPost, resources["podtemplates"]+"?dryRun=All&fieldManager=test", asJSON, object)
		if codes[code]++; code != want {
			t.Errorf("%s: %d", s.Name, code)
		}
		if !same {
			differ++
		}
	}
	t.Logf("%d templates, by code %v, %d differ", len(all), codes, differ)
}
