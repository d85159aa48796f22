package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Kubernetes' own types are served under another group, by generated facts beside them (testdata/foreign).
func TestForeignTypes(t *testing.T) {
	client, err := dynamic.NewForConfig(startServer(t, "foreign").config(t))
	if err != nil {
		t.Fatal(err)
	}
	deployments := client.Resource(schema.GroupVersionResource{Group: "apps.example.com", Version: "v1", Resource: "deployments"}).
		Namespace("default")
	container := func(name, image string) map[string]any { return map[string]any{"name": name, "image": image} }
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps.example.com/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
				"spec":     map[string]any{"containers": []any{container("web", "nginx:1")}},
			},
		},
	}}
	if _, err := deployments.Apply(t.Context(), "web", object, metav1.ApplyOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	// Lists merge by the keys in the definitions.
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"envoy:1"}]}}}}`
	got, err := deployments.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	containers, _, _ := unstructured.NestedSlice(got.Object, "spec", "template", "spec", "containers")
	if len(containers) != 2 {
		t.Errorf("containers after a strategic merge patch: %v", containers)
	}
	_ = unstructured.SetNestedSlice(object.Object, []any{container("web", "nginx:2")}, "spec", "template", "spec", "containers")
	if got, err = deployments.Apply(t.Context(), "web", object, metav1.ApplyOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	containers, _, _ = unstructured.NestedSlice(got.Object, "spec", "template", "spec", "containers")
	if len(containers) != 2 || got.GetGeneration() != 3 {
		t.Errorf("containers after an apply: %v, generation %d", containers, got.GetGeneration())
	}
	list, err := deployments.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "DeploymentList" {
		t.Errorf("list: %v, %v", list, err)
	}
	_ = unstructured.SetNestedField(object.Object, "many", "spec", "replicas")
	if _, err := deployments.Apply(t.Context(), "web", object, metav1.ApplyOptions{FieldManager: "kubectl"}); err == nil {
		t.Error("replicas that are no number were applied")
	}
}
