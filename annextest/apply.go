package annextest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// patience is how long Apply retries an object that may need another object.
const patience = 2 * time.Second

// Apply applies the objects in YAML files, in their order, as kubectl apply --server-side does, and returns the
// applied objects as the server returned them. Objects without a namespace go into the namespace default. The names
// of files may be patterns of filepath.Glob. If the server answers that an object is forbidden or not found, Apply
// retries it behind the others, for 2 seconds, since it may need another object. Apply fails the test if a pattern
// matches no file, if a file does not hold objects, or if the server refuses an object or warns about it.
func Apply(t testing.TB, config *rest.Config, files ...string) []*unstructured.Unstructured {
	t.Helper()
	warnings := &warnings{}
	config = rest.CopyConfig(config)
	config.WarningHandler = warnings
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	groups, err := restmapper.GetAPIGroupResources(discoverer)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	var all []*application
	for _, pattern := range files {
		matches, err := filepath.Glob(pattern)
		if err != nil || len(matches) == 0 {
			t.Fatalf("apply: no files match %s (%v)", pattern, err)
		}
		for _, file := range matches {
			objects, err := readObjects(file)
			if err != nil {
				t.Fatalf("apply %s: %v", file, err)
			}
			for _, obj := range objects {
				resource, err := resourceOf(client, mapper, obj)
				if err != nil {
					t.Fatalf("apply %s: %v", file, err)
				}
				all = append(all, &application{file: file, resource: resource, obj: obj})
			}
		}
	}
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return applyRest(t, all, warnings), nil
	})
	if err != nil && !wait.Interrupted(err) {
		t.Fatalf("apply: %v", err)
	}
	var applied []*unstructured.Unstructured
	for _, a := range all {
		if a.err != nil {
			t.Fatalf("apply %s: %v", a.file, a.err)
		}
		applied = append(applied, a.got)
	}
	return applied
}

// application is an object to apply, with the server's object or error.
type application struct {
	file     string
	resource dynamic.ResourceInterface
	obj, got *unstructured.Unstructured
	err      error
}

// applyRest applies the objects that have not been applied yet, and reports whether none is left to retry.
func applyRest(t testing.TB, all []*application, warnings *warnings) bool {
	t.Helper()
	done := true
	for _, a := range all {
		if a.got != nil {
			continue
		}
		a.got, a.err = a.resource.Apply(t.Context(), a.obj.GetName(), a.obj, metav1.ApplyOptions{FieldManager: "annextest"})
		if a.err != nil {
			a.got = nil
			if !apierrors.IsForbidden(a.err) && !apierrors.IsNotFound(a.err) {
				t.Fatalf("apply %s: %v", a.file, a.err)
			}
			done, warnings.texts = false, nil
			continue
		}
		for _, text := range warnings.texts {
			t.Errorf("apply %s: warning: %s", a.file, text)
		}
		warnings.texts = nil
	}
	return done
}

// warnings keeps the server's warnings.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

func resourceOf(client dynamic.Interface, mapper meta.RESTMapper, obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := obj.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	resource := client.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return resource, nil
	}
	if namespace := obj.GetNamespace(); namespace != "" {
		return resource.Namespace(namespace), nil
	}
	return resource.Namespace(metav1.NamespaceDefault), nil
}

func readObjects(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &obj.Object); err != nil {
			return nil, err
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}
