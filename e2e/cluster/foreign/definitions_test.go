package foreign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/e2e/cluster/gomod"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// projects are the projects whose definitions are served. Samples are all objects of their kinds in the module.
var projects = []struct {
	module      string
	definitions []string // patterns of files
	samples     string   // the module that has them
	least       int      // of samples
}{
	{"sigs.k8s.io/gateway-api@v1.4.0", []string{"config/crd/experimental/*.yaml"}, "sigs.k8s.io/gateway-api@v1.4.0", 200},
	{
		"sigs.k8s.io/cluster-api@v1.14.2",
		[]string{"*/config/crd/bases/*.yaml", "*/*/config/crd/bases/*.yaml"},
		"sigs.k8s.io/cluster-api/test@v1.14.2",
		50,
	},
	{"github.com/cert-manager/cert-manager@v1.21.2", []string{"deploy/crds/*.yaml"}, "github.com/cert-manager/cert-manager@v1.21.2", 4},
	{
		"github.com/prometheus-operator/prometheus-operator@v0.85.0",
		[]string{"example/prometheus-operator-crd-full/*.yaml"},
		"github.com/prometheus-operator/prometheus-operator@v0.85.0",
		20,
	},
	{
		"github.com/argoproj/argo-workflows/v3@v3.7.0",
		[]string{"manifests/base/crds/full/argoproj.io_*.yaml"},
		"github.com/argoproj/argo-workflows/v3@v3.7.0",
		400,
	},
}

type object = map[string]any

// server is one of the two, as its administrator.
type server struct {
	name, host string
	client     *http.Client
}

func connect(t *testing.T, name string, config *rest.Config) *server {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &server{name, config.Host, client}
}

// ask returns the code and the response, without the parts that belong to the server.
func (s *server) ask(t *testing.T, method, path string, body any) (int, string, []byte) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, s.host+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "foreign")
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	warnings := response.Header.Values("Warning")
	slices.Sort(warnings)
	var told object
	if err := json.Unmarshal(answer, &told); err != nil {
		t.Fatalf("%s: %s %s: %q: %v", s.name, method, path, answer, err)
	}
	scrub(told)
	plain, err := json.MarshalIndent(told, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.Join(append(warnings, string(plain)), "\n"), answer
}

// serves reports whether a path is served. Until it is, both servers answer with a text.
func (s *server) serves(t *testing.T, path string) bool {
	t.Helper()
	response, err := s.client.Get(s.host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode == http.StatusOK
}

// scrub removes the parts that belong to each server. It sorts causes, and omits messages composed of several.
func scrub(value any) {
	switch v := value.(type) {
	case object:
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime"} {
			delete(v, name)
		}
		if causes, ok := v["causes"].([]any); ok {
			slices.SortFunc(causes, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		if details, ok := v["details"].(object); ok {
			if causes, ok := details["causes"].([]any); ok && len(causes) > 1 {
				delete(v, "message")
			}
		}
		for _, inner := range v {
			scrub(inner)
		}
	case []any:
		for _, inner := range v {
			scrub(inner)
		}
	}
}

// definitionsIn reads the definitions of the files that match.
func definitionsIn(t *testing.T, dir string, patterns []string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for part := range bytes.SplitSeq(text, []byte("\n---")) {
				d := &apiextensionsv1.CustomResourceDefinition{}
				if err := yaml.Unmarshal(part, d); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				if d.Kind == "CustomResourceDefinition" {
					all = append(all, d)
				}
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("no definition in %s matches %s", dir, patterns)
	}
	return all
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// establishForTest is establish, and removes the definitions after the test.
func (s *server) establishForTest(t *testing.T, all []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	t.Cleanup(func() { s.remove(t, all) })
	s.establish(t, all)
}

// establish creates definitions and waits until they are served.
func (s *server) establish(t *testing.T, all []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	for _, d := range all {
		if code, answer, _ := s.ask(t, http.MethodPost, definitions, d); code != http.StatusCreated {
			t.Fatalf("%s: %s: %d\n%s", s.name, d.Name, code, answer)
		}
	}
	for _, d := range all {
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, testwait.Patience, true, func(context.Context) (bool, error) {
			_, _, raw := s.ask(t, http.MethodGet, definitions+"/"+d.Name, nil)
			var is apiextensionsv1.CustomResourceDefinition
			if err := json.Unmarshal(raw, &is); err != nil {
				return false, err
			}
			established := slices.ContainsFunc(is.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			})
			if !established || !d.Spec.Versions[0].Served {
				return established, nil
			}
			return s.serves(t, "/apis/"+d.Spec.Group+"/"+d.Spec.Versions[0].Name+"/"+d.Spec.Names.Plural+"?limit=1"), nil
		})
		if err != nil {
			t.Fatalf("%s: %s is not established: %v", s.name, d.Name, err)
		}
	}
}

// remove deletes definitions, with their objects, and waits until they are gone.
func (s *server) remove(t *testing.T, all []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	for _, d := range all {
		s.ask(t, http.MethodDelete, definitions+"/"+d.Name, nil)
	}
	for _, d := range all {
		testwait.Until(t, d.Name+" is gone", func() bool {
			code, _, _ := s.ask(t, http.MethodGet, definitions+"/"+d.Name, nil)
			return code == http.StatusNotFound
		})
	}
}

// sample is an object of a module, with the path at which it is served.
type sample struct {
	file, path string
	object     object
}

// samplesIn finds the objects of the defined kinds in a module, in all readable YAML: files, and blocks of pages.
func samplesIn(t *testing.T, dir string, all []*apiextensionsv1.CustomResourceDefinition) []sample {
	t.Helper()
	paths := map[string]string{}
	for _, d := range all {
		for _, v := range d.Spec.Versions {
			path := "/apis/" + d.Spec.Group + "/" + v.Name + "/"
			if d.Spec.Scope == apiextensionsv1.NamespaceScoped {
				path += "namespaces/default/"
			}
			paths[d.Spec.Group+"/"+v.Name+" "+d.Spec.Names.Kind] = path + d.Spec.Names.Plural
		}
	}
	var found []sample
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json", ".md"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		for part := range bytes.SplitSeq(blocks(path, text), []byte("\n---")) {
			var o object
			if yaml.Unmarshal(part, &o) != nil {
				continue // templates are no YAML
			}
			at, served := paths[fmt.Sprint(o["apiVersion"])+" "+fmt.Sprint(o["kind"])]
			metadata, ok := o["metadata"].(object)
			if !served || !ok {
				continue
			}
			delete(metadata, "generateName")
			delete(metadata, "namespace")
			metadata["name"] = fmt.Sprintf("sample-%d", len(found))
			found = append(found, sample{file, at, o})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// blocks returns the YAML blocks of a page, as documents of one file.
func blocks(path string, text []byte) []byte {
	if filepath.Ext(path) != ".md" {
		return text
	}
	var all [][]byte
	for i, part := range bytes.Split(text, []byte("```")) {
		if yaml, is := bytes.CutPrefix(part, []byte("yaml")); is && i%2 == 1 {
			all = append(all, yaml)
		}
	}
	return bytes.Join(all, []byte("\n---\n"))
}

// The definitions of other projects become Established, and both servers accept and reject their samples, and invalid
// variants of them, alike.
func TestForeignDefinitions(t *testing.T) {
	theirs, ours := connect(t, "kube-apiserver", host.Admin()), connect(t, "annex", alone.ServeControlPlane(t))
	for _, project := range projects {
		t.Run(project.module, func(t *testing.T) {
			dir := gomod.Dir(t, project.module)
			all := definitionsIn(t, dir, project.definitions)
			theirs.establishForTest(t, all)
			ours.establishForTest(t, all)
			samples := samplesIn(t, gomod.Dir(t, project.samples), all)
			if len(samples) < project.least {
				t.Errorf("%d samples, at least %d are there", len(samples), project.least)
			}
			codes, asked, differ := map[int]int{}, 0, 0
			same := func(what, path string, o object) int {
				code, x, _ := theirs.ask(t, http.MethodPost, path, o)
				got, y, _ := ours.ask(t, http.MethodPost, path, o)
				asked++
				codes[code]++
				if code != got || x != y {
					differ++
					if differ <= 5 {
						t.Errorf("%s: POST %s: kube-apiserver %d, annex %d\n%.1500s\n%s", what, path, code, got, text(o), difference(x, y))
					}
				}
				return code
			}
			for _, s := range samples {
				if same(s.file, s.path+"?fieldValidation=Strict", s.object) != http.StatusCreated {
					same(s.file, s.path+"?fieldValidation=Warn&dryRun=All", s.object)
				}
				for what, wrong := range wrongs(s.object) {
					same(s.file+" with another "+what, s.path+"?dryRun=All", wrong)
				}
			}
			t.Logf("%d definitions, %d samples, %d objects sent: by code %v, %d differ", len(all), len(samples), asked, codes, differ)
		})
	}
}

// wrongs returns variants of an object with each field of its spec left out, and of another type.
func wrongs(o object) map[string]object {
	all := map[string]object{}
	spec, ok := o["spec"].(object)
	if !ok {
		return all
	}
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		without, odd := runtime.DeepCopyJSON(o), runtime.DeepCopyJSON(o)
		for _, copied := range []object{without, odd} {
			copied["metadata"].(object)["name"] = "wrong"
		}
		delete(without["spec"].(object), name)
		odd["spec"].(object)[name] = "-1x"
		if _, is := spec[name].(string); is {
			odd["spec"].(object)[name] = "-1x " + strings.Repeat("long ", 60)
		}
		all["no "+name], all[name] = without, odd
	}
	return all
}

func text(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// difference returns the lines that only one of them has.
func difference(theirs, ours string) string {
	x, y := strings.Split(theirs, "\n"), strings.Split(ours, "\n")
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	return fmt.Sprintf("kube-apiserver:\n%.1500s\nannex:\n%.1500s\n", strings.Join(x, "\n"), strings.Join(y, "\n"))
}
