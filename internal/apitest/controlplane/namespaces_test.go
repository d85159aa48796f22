package controlplane

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testwait"
)

func TestTheNamespacesOfAClusterAreThereFromTheStart(t *testing.T) {
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

// What becomes of the dependents of a namespace is said by its finalizers, which the collector takes away.
func TestADeletedNamespaceTellsTheCollectorOfItsDependents(t *testing.T) {
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
			if err := client.CoreV1().RESTClient().Delete().Resource("namespaces").Name(name).Body([]byte(c.options)).SetHeader("Content-Type", "application/json").Do(t.Context()).Into(&deleted); err != nil {
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
