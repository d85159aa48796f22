package controlplane

import (
	"context"
	"fmt"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestNamespace_initial(t *testing.T) {
	t.Parallel()
	namespaces := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster())).CoreV1().Namespaces()
	list, err := namespaces.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	if want := []string{"default", "kube-node-lease", "kube-public", "kube-system"}; !slices.Equal(names, want) {
		t.Errorf("%v instead of %v", names, want)
	}
	for _, name := range names {
		err := namespaces.Delete(t.Context(), name, metav1.DeleteOptions{})
		if wanted := name != "kube-node-lease"; apierrors.IsForbidden(err) != wanted || !wanted && err != nil {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
}

// The finalizers of a namespace decide about its dependents; the garbage collector removes these finalizers.
func TestNamespace_dependents(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	for name, c := range map[string]struct {
		had     []string
		options string
		want    []string
	}{
		"nothing-said":       {nil, `{}`, nil},
		"said-before":        {[]string{"orphan"}, `{}`, []string{"orphan"}},
		"background":         {[]string{"orphan"}, `{"propagationPolicy":"Background"}`, nil},
		"foreground":         {nil, `{"propagationPolicy":"Foreground"}`, []string{"foregroundDeletion"}},
		"orphan":             {[]string{"foregroundDeletion"}, `{"propagationPolicy":"Orphan"}`, []string{"orphan"}},
		"orphans-by-old-way": {nil, `{"orphanDependents":true}`, []string{"orphan"}},
		"no-orphans":         {nil, `{"orphanDependents":false}`, []string{"foregroundDeletion"}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: c.had}}
			if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			var deleted corev1.Namespace
			if err := client.CoreV1().
				RESTClient().
				Delete().
				Resource("namespaces").
				Name(name).
				Body([]byte(c.options)).
				SetHeader("Content-Type", "application/json").
				Do(t.Context()).
				Into(&deleted); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(deleted.Finalizers, c.want) {
				t.Errorf("%v instead of %v", deleted.Finalizers, c.want)
			}
			testwait.Until(t, "the namespace is gone", func() bool {
				_, err := client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
		})
	}
}

// BenchmarkNamespaceDeletion measures the deletion of a namespace with a thousand objects: 50 of each of 20 kinds,
// 16 of them custom.
//
//	go test ./internal/testing/apitest/controlplane -run xxx -bench NamespaceDeletion -benchtime 5x
func BenchmarkNamespaceDeletion(b *testing.B) {
	config := annextest.Start(b, cluster())
	config.QPS = -1
	client, definitions := kubernetes.NewForConfigOrDie(
		config,
	), clientset.NewForConfigOrDie(config).
		ApiextensionsV1().
		CustomResourceDefinitions()
	objects := dynamic.NewForConfigOrDie(config)
	kinds := map[schema.GroupVersionResource]string{
		corev1.SchemeGroupVersion.WithResource("configmaps"):      "ConfigMap",
		corev1.SchemeGroupVersion.WithResource("secrets"):         "Secret",
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"): "ServiceAccount",
		coordinationv1.SchemeGroupVersion.WithResource("leases"):  "Lease",
	}
	for i := range 16 {
		d := widgets(sizeAndColor)
		d.Spec.Names.Plural, d.Spec.Names.Kind = fmt.Sprint("widgets", i), fmt.Sprint("Widget", i)
		d.Name = d.Spec.Names.Plural + "." + d.Spec.Group
		if _, err := definitions.Create(b.Context(), d, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		kinds[schema.GroupVersionResource{Group: d.Spec.Group, Version: "v1", Resource: d.Spec.Names.Plural}] = d.Spec.Names.Kind
	}
	for resource := range kinds {
		testwait.NoError(b, "the kind is served", func(ctx context.Context) error {
			_, err := objects.Resource(resource).List(ctx, metav1.ListOptions{})
			return err
		})
	}
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		name := fmt.Sprint("ns-", n)
		if _, err := client.CoreV1().
			Namespaces().
			Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		for resource, kind := range kinds {
			for i := range 50 {
				object := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": fmt.Sprint("o", i)},
				}}
				if _, err := objects.Resource(resource).Namespace(name).Create(b.Context(), object, metav1.CreateOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.StartTimer()
		if err := client.CoreV1().Namespaces().Delete(b.Context(), name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		testwait.Until(b, "the namespace is gone", func() bool {
			_, err := client.CoreV1().Namespaces().Get(b.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
}
