package controlplane

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/annextest"
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
