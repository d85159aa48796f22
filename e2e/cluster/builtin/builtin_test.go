package builtin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

// resources are the paths of the objects in testdata.
var resources = map[string]string{
	"configmaps":                        "/api/v1/namespaces/default/configmaps",
	"secrets":                           "/api/v1/namespaces/default/secrets",
	"events":                            "/api/v1/namespaces/default/events",
	"newevents":                         "/apis/events.k8s.io/v1/namespaces/default/events",
	"resourcequotas":                    "/api/v1/namespaces/default/resourcequotas",
	"limitranges":                       "/api/v1/namespaces/default/limitranges",
	"podtemplates":                      "/api/v1/namespaces/default/podtemplates",
	"leases":                            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
	"leasecandidates":                   "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates",
	"storageversionmigrations":          "/apis/storagemigration.k8s.io/v1/storageversionmigrations",
	"validatingwebhookconfigurations":   "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
	"mutatingwebhookconfigurations":     "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
	"validatingadmissionpolicies":       "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"validatingadmissionpolicybindings": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
	"mutatingadmissionpolicies":         "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
	"mutatingadmissionpolicybindings":   "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
}

func samples(t *testing.T, name string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var doc map[string]any
		switch err := documents.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, doc)
	}
}

func number(t *testing.T, variable string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func nameOf(doc map[string]any) string {
	metadata, _ := doc["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

// Both servers answer every request alike: rejections, their messages, and the stored form of accepted objects. The
// objects of testdata are valid, and are changed at random.
func TestBuiltin_randomRequests(t *testing.T) {
	seed, rounds := number(t, "ANNEX_BUILTIN_SEED", rand.Uint64()), number(t, "ANNEX_BUILTIN_ROUNDS", 60)
	t.Logf("seed: ANNEX_BUILTIN_SEED=%d", seed)
	theirs, ours := connect(t, host.Admin()), connect(t, start(t))
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		path := resources[name]
		t.Run(name, func(t *testing.T) {
			b := &both{t: t, theirs: theirs, ours: ours}
			r := random{rand.New(rand.NewPCG(seed, uint64(len(name))))}
			b.lives(name, path, samples(t, name))
			b.tables(path)
			b.changes(r, path, samples(t, name), rounds)
		})
	}
}

// lives creates the samples, reads, applies and updates them.
func (b *both) lives(name, path string, all []map[string]any) {
	for _, doc := range all {
		what, at := "sample "+nameOf(doc), path+"/"+nameOf(doc)
		if code, _ := b.same(what+" created", http.MethodPost, path+"?fieldManager=test", asJSON, doc); code != http.StatusCreated {
			b.t.Errorf("%s: kube-apiserver refuses it with %d", what, code)
			continue
		}
		b.same(what+" again", http.MethodPost, path, asJSON, doc)
		b.same(what+" read", http.MethodGet, at, asJSON, nil)
		b.same(what+" updated", http.MethodPut, at+"?fieldManager=test", asJSON, doc)
		labels := map[string]any{"metadata": map[string]any{"labels": map[string]any{"new": "label"}}}
		b.same(what+" labeled", http.MethodPatch, at+"?fieldManager=test", "application/merge-patch+json", labels)
		b.same(what+" applied", http.MethodPatch, at+"?fieldManager=applier&force=true", "application/apply-patch+yaml", doc)
		missing := compare.Clone(doc)
		missing["metadata"].(map[string]any)["name"] = "missing"
		b.same(what+" updated dry where there is none", http.MethodPut, path+"/missing?dryRun=All&fieldManager=test", asJSON, missing)
		b.same(what+" updated where there is none", http.MethodPut, path+"/missing?fieldManager=test", asJSON, missing)
		b.same(what+" deleted where there may be none", http.MethodDelete, path+"/missing", asJSON, nil)
	}
}

// tables compares the tables that kubectl get prints; wide columns are always in a table.
func (b *both) tables(path string) {
	b.same("table", http.MethodGet, path, table, nil)
	b.same("selected by name", http.MethodGet, path+"?fieldSelector=metadata.name%3Da", asJSON, nil)
	b.same("selected by an unknown field", http.MethodGet, path+"?fieldSelector=spec.nowhere%3Da", asJSON, nil)
}

// changes sends changed samples as creates, updates and patches, with and without dry run.
func (b *both) changes(r random, path string, all []map[string]any, rounds uint64) {
	codes, differ := map[int]int{}, 0
	for i := range rounds {
		sample := one(r, all)
		changed, at := r.mutate(sample, all), path+"/"+nameOf(sample)
		try := func(what, method, path, contentType string, body any) {
			code, same := b.same(fmt.Sprintf("%s %d", what, i), method, path, contentType, body)
			codes[code]++
			if !same {
				differ++
			}
		}
		try("dry update", http.MethodPut, at+"?dryRun=All&fieldManager=test", asJSON, changed)
		changed["metadata"].(map[string]any)["name"] = "new"
		try("dry create", http.MethodPost, path+"?dryRun=All&fieldManager=test", asJSON, changed)
		if i%4 == 0 {
			try("update", http.MethodPut, at+"?fieldManager=test", asJSON, changed)
			try("create", http.MethodPost, path+"?fieldManager=test", asJSON, changed)
			try("patch", http.MethodPatch, at+"?fieldManager=test", "application/merge-patch+json", changed)
			changed["metadata"].(map[string]any)["name"] = nameOf(sample)
			try("named patch", http.MethodPatch, at+"?fieldManager=test", "application/merge-patch+json", changed)
			try(
				"status",
				http.MethodPatch,
				at+"/status?fieldManager=test",
				"application/merge-patch+json",
				map[string]any{"metadata": changed["metadata"], "status": changed["spec"]},
			)
			b.same("delete", http.MethodDelete, path+"/new", asJSON, nil)
		}
	}
	b.tables(path)
	b.t.Logf("%s: %d answers, by code %v, %d differ", strings.TrimPrefix(path, "/"), total(codes), codes, differ)
}

func TestBuiltin_tooLarge(t *testing.T) {
	b := &both{t: t, theirs: connect(t, host.Admin()), ours: connect(t, start(t))}
	data := map[string]any{"a": strings.Repeat("x", 1<<20), "b": "y"}
	for kind, object := range map[string]map[string]any{"ConfigMap": {"data": data}, "Secret": {"stringData": data}} {
		object["apiVersion"], object["kind"], object["metadata"] = "v1", kind, map[string]any{"name": "large"}
		if code, _ := b.same(
			kind,
			http.MethodPost,
			resources[strings.ToLower(kind)+"s"],
			asJSON,
			object,
		); code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", kind, code)
		}
	}
}

func total(codes map[int]int) int {
	n := 0
	for _, count := range codes {
		n += count
	}
	return n
}
