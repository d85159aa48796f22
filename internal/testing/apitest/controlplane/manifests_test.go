package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

const widgetsFile = `# what is sold
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`

var gadgetsFile = strings.NewReplacer("widgets", "gadgets", "Widget", "Gadget").Replace(widgetsFile)

// folderOf writes files by name into a new folder.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		replace(t, filepath.Join(dir, name), text)
	}
	return dir
}

// replace writes a file atomically, by renaming a temporary one.
func replace(t *testing.T, file, text string) {
	t.Helper()
	made := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(made, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(made, file); err != nil {
		t.Fatal(err)
	}
}

func defined(dirs ...string) annex.Server {
	return annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{CRDs: dirs})}
}

func TestManifests_definitions_servedWhenReady(t *testing.T) {
	t.Parallel()
	dir := folderOf(
		t,
		map[string]string{"both.yaml": widgetsFile + "---\n" + gadgetsFile, "README.md": "no definition", ".hidden.yaml": "none either"},
	)
	more := folderOf(
		t,
		map[string]string{
			"more.json": `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "mores.stable.example.com"},
		"spec": {"group": "stable.example.com", "scope": "Cluster", "names": {"plural": "mores", "kind": "More"},
		"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}`,
		},
	)
	c := clientsOf(
		annextest.StartWith(
			t,
			defined(dir),
			annex.Options{Storage: memory.Storage(), ControlPlane: annex.ControlPlaneOptions{CRDs: []string{more}}},
		),
	)
	if _, err := c.widgets.Create(t.Context(), widget("one", nil), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"widgets", "gadgets", "mores"} {
		definition, err := c.definitions.ApiextensionsV1().
			CustomResourceDefinitions().
			Get(t.Context(), name+".stable.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if manager := definition.ManagedFields[0].Manager; manager != "annex-crds" {
			t.Errorf("%s is managed by %s", name, manager)
		}
	}
}

func TestManifests_definitionsOfProgram(t *testing.T) {
	t.Parallel()
	bringing := func(more ...string) annex.Server {
		brought := fstest.MapFS{
			"widgets.yaml":     {Data: []byte(widgetsFile)},
			"deeper/more.yaml": {Data: []byte("not read")},
			"embed.go":         {Data: []byte("package crds")},
		}
		return annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{CRDFiles: brought, CRDs: more})}
	}
	for name, dirs := range map[string][]string{"alone": nil,
		"beside a folder": {folderOf(t, map[string]string{"gadgets.yaml": gadgetsFile})}} {
		t.Run(name, func(t *testing.T) {
			c := clientsOf(annextest.Start(t, bringing(dirs...)))
			if _, err := c.widgets.Create(t.Context(), widget("one", nil), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	twice := bringing(folderOf(t, map[string]string{"w.yaml": widgetsFile}))
	if _, err := annex.New(
		t.Context(),
		twice,
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(err.Error(), "widgets.stable.example.com is also defined by widgets.yaml, document 2") {
		t.Errorf("defined twice: %v", err)
	}
	broken := annex.Server{
		Name:         "cluster",
		ControlPlane: controlplane.New(controlplane.Options{CRDFiles: fstest.MapFS{"a.yaml": {Data: []byte("kind: Pod")}}}),
	}
	if _, err := annex.New(
		t.Context(),
		broken,
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(err.Error(), `a.yaml: apiVersion "", kind "Pod"`) {
		t.Errorf("no definition: %v", err)
	}
}

func TestManifests_changedFiles(t *testing.T) {
	t.Parallel()
	dir := folderOf(t, map[string]string{"widgets.yaml": widgetsFile})
	c := clientsOf(annextest.Start(t, defined(dir)))
	typeOfSize := func(ctx context.Context) (string, error) {
		definition, err := c.definitions.ApiextensionsV1().
			CustomResourceDefinitions().
			Get(ctx, "widgets.stable.example.com", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["size"].Type, nil
	}
	awaitType := func(want string) {
		t.Helper()
		testwait.NoError(t, "the definition follows its file", func(ctx context.Context) error {
			if got, err := typeOfSize(ctx); err != nil || got != want {
				return fmt.Errorf("size is %q: %w", got, err)
			}
			return nil
		})
	}
	file := filepath.Join(dir, "widgets.yaml")
	replace(t, file, strings.Replace(widgetsFile, "integer", "string", 1))
	awaitType("string")

	// A broken file blocks the others until it is repaired.
	replace(t, filepath.Join(dir, "broken.yaml"), "{")
	replace(t, file, widgetsFile)
	replace(t, filepath.Join(dir, "gadgets.yaml"), gadgetsFile)
	if err := os.Remove(filepath.Join(dir, "broken.yaml")); err != nil {
		t.Fatal(err)
	}
	awaitType("integer")

	// Definitions that are in no file any more stay.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	replace(t, filepath.Join(dir, "gadgets.yaml"), strings.Replace(gadgetsFile, "integer", "string", 1))
	testwait.NoError(t, "the other definition follows its file", func(ctx context.Context) error {
		definition, err := c.definitions.ApiextensionsV1().
			CustomResourceDefinitions().
			Get(ctx, "gadgets.stable.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["size"].Type; got != "string" {
			return fmt.Errorf("size is %q", got)
		}
		return nil
	})
	awaitType("integer")
}

func TestManifests_otherFiles_areRefused(t *testing.T) {
	t.Parallel()
	for want, files := range map[string]map[string]string{
		"bad.yaml: yaml: line 2: ":          {"bad.yaml": "a: b\n  c: d\n"},
		"bad.yaml, document 3: apiVersion ": {"bad.yaml": widgetsFile + "---\n{apiVersion: v1, kind: Secret, metadata: {name: a}}\n"},
		`"apiextensions.k8s.io/v1beta1", kind "CustomResourceDefinition": must be apiextensions.k8s.io/v1 and CustomResourceDefinition`: {"old.yml": strings.Replace(widgetsFile, "k8s.io/v1", "k8s.io/v1beta1", 1)},
		"metadata.name is empty: must be PLURAL.GROUP": {"nameless.json": `{"apiVersion": "apiextensions.k8s.io/v1", ` +
			`"kind": "CustomResourceDefinition"}`},
		`key "kind" already set in map`:                                      {"twice.yaml": "kind: A\nkind: B\n"},
		"b.yaml, document 2: widgets.stable.example.com is also defined by ": {"a.yaml": widgetsFile, "b.yaml": widgetsFile},
	} {
		if _, err := annex.New(
			t.Context(),
			defined(folderOf(t, files)),
			annex.Options{Storage: memory.Storage()},
		); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	if _, err := annex.New(
		t.Context(),
		defined(filepath.Join(t.TempDir(), "none")),
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(err.Error(), "folder of CustomResourceDefinitions: open ") {
		t.Error(err)
	}
}

// A definition that the server rejects keeps it unready, with the reason, until the file is repaired.
func TestManifests_refusedDefinition_isNotReady(t *testing.T) {
	t.Parallel()
	dir := folderOf(
		t,
		map[string]string{"widgets.yaml": strings.Replace(widgetsFile, "type: integer", "type: size", 1), "gadgets.yaml": gadgetsFile},
	)
	server, err := annex.New(t.Context(), defined(dir), annex.Options{Storage: memory.Storage()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- server.Run(ctx, func() { close(ready) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	testwait.NoError(t, "the server says why it is not ready", func(context.Context) error {
		recorder := httptest.NewRecorder()
		server.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if text := recorder.Body.String(); !strings.Contains(text, "control-plane failed") ||
			!strings.Contains(text, "widgets.yaml, document 2: ") ||
			!strings.Contains(text, "Unsupported value: \"size\"") {
			return fmt.Errorf("%d %s", recorder.Code, text)
		}
		return nil
	})
	// The other definitions are served.
	config, err := server.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config).RESTClient()
	testwait.NoError(t, "the other definition is served", func(ctx context.Context) error {
		return client.Get().AbsPath("/apis/stable.example.com/v1/gadgets").Do(ctx).Error()
	})
	replace(t, filepath.Join(dir, "widgets.yaml"), widgetsFile)
	<-ready
}
