package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"example.com/wardle/server"
	"github.com/annexapi/annex/annextest"
)

var (
	alpha    = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}
	beta     = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"}
	fischers = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "fischers"}
)

func object(gvr schema.GroupVersionResource, kind, name string, fields map[string]any) *unstructured.Unstructured {
	content := map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       kind,
		"metadata":   map[string]any{"name": name},
	}
	for k, v := range fields {
		content[k] = v
	}
	return &unstructured.Unstructured{Object: content}
}

func flunder(gvr schema.GroupVersionResource, name string, spec map[string]any) *unstructured.Unstructured {
	return object(gvr, "Flunder", name, map[string]any{"spec": spec})
}

func spec(t *testing.T, obj *unstructured.Unstructured) map[string]any {
	t.Helper()
	got, _, err := unstructured.NestedMap(obj.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestFlunder_versions(t *testing.T) {
	t.Parallel()
	client := dynamic.NewForConfigOrDie(annextest.Start(t, server.New()))
	ctx := t.Context()

	if _, err := client.Resource(alpha).
		Namespace("default").
		Create(ctx, flunder(alpha, "f", map[string]any{"reference": "x"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := client.Resource(beta).Namespace("default").Get(ctx, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := spec(t, got); s["flunderReference"] != "x" || s["referenceType"] != "Flunder" {
		t.Errorf("v1beta1: %v", s)
	}
	if err := unstructured.SetNestedMap(got.Object, map[string]any{"fischerReference": "y", "referenceType": "Fischer"}, "spec"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(beta).Namespace("default").Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err = client.Resource(alpha).Namespace("default").Get(ctx, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := spec(t, got); s["reference"] != "y" || s["referenceType"] != "Fischer" {
		t.Errorf("v1alpha1: %v", s)
	}
}

func TestFlunder_invalid_isRefused(t *testing.T) {
	t.Parallel()
	client := dynamic.NewForConfigOrDie(annextest.Start(t, server.New())).Resource(beta).Namespace("default")
	ctx := t.Context()
	if _, err := client.Create(ctx, flunder(beta, "good", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"both":      {map[string]any{"referenceType": "Flunder", "flunderReference": "a", "fischerReference": "b"}, "spec.fischerReference"},
		"the other": {map[string]any{"referenceType": "Fischer", "flunderReference": "a"}, "spec.fischerReference: Required value"},
		"none":      {map[string]any{"referenceType": "Flunder"}, "spec.flunderReference: Required value"},
		"unknown":   {map[string]any{"referenceType": "Flounder", "flunderReference": "a"}, `spec.referenceType: Unsupported value: "Flounder"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Create(ctx, flunder(beta, "bad", test.spec), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("create: got %v, want 422 with %s", err, test.want)
			}
			good, err := client.Get(ctx, "good", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			good.Object["spec"] = test.spec
			if _, err := client.Update(ctx, good, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("update: got %v, want 422 with %s", err, test.want)
			}
		})
	}
}

// eventually calls try until it returns true. The admission hook reads fischers from a cache, which may lag behind a
// create.
func eventually(t *testing.T, try func() bool) {
	t.Helper()
	for range 1000 {
		if try() {
			return
		}
	}
	t.Fatal("it never happened")
}

func TestBanFlunder(t *testing.T) {
	t.Parallel()
	client := dynamic.NewForConfigOrDie(annextest.Start(t, server.New()))
	flunders := client.Resource(beta).Namespace("default")
	ctx := t.Context()

	bad, err := flunders.Create(ctx, object(beta, "Flunder", "bad", map[string]any{"metadata": map[string]any{
		"name": "bad", "finalizers": []any{"example.com/stay"},
	}}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fischer := object(fischers, "Fischer", "strict", map[string]any{"disallowedFlunders": []any{"bad", "worse"}})
	if _, err := client.Resource(fischers).Create(ctx, fischer, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	eventually(t, func() bool {
		_, err := flunders.Create(ctx, flunder(beta, "worse", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return false
		}
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `the name "worse" may not be used`) {
			t.Fatalf("create: %v", err)
		}
		return true
	})

	change := func(patch string) error {
		_, err := flunders.Patch(ctx, "bad", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if err := change(`{"spec":{"flunderReference":"x"}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a change of the spec: %v, want 403", err)
	}
	if err := change(`{"metadata":{"labels":{"a":"b"}}}`); err != nil {
		t.Errorf("a change of the labels: %v", err)
	}
	if _, err := flunders.Patch(ctx, "bad", types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("a change of the status: %v", err)
	}
	if err := flunders.Delete(ctx, "bad", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := change(`{"spec":{"flunderReference":"x"}}`); err != nil {
		t.Errorf("a change of the spec while it is being deleted: %v", err)
	}
	w, err := flunders.Watch(ctx, metav1.ListOptions{ResourceVersion: bad.GetResourceVersion(), FieldSelector: "metadata.name=bad"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := change(`{"metadata":{"finalizers":null}}`); err != nil {
		t.Errorf("taking the finalizer: %v", err)
	}
	for event := range w.ResultChan() {
		if event.Type == watch.Deleted {
			return
		}
	}
	t.Error("the watch ended before the flunder was deleted")
}
