package annextest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/model/facts/core"
)

// The core group has no name. The facts of its types are generated:
//
//	annex generate --for k8s.io/api/core/v1 --as v1 ./facts/core
var fakeCluster = annex.Server{Name: "fake", Groups: []annex.Group{{
	Name: "",
	Kinds: []annex.Kind{
		annex.KindOf[corev1.Node, corev1.NodeList]("nodes", core.API).ClusterScoped().ShortNames("no"),
		annex.KindOf[corev1.Pod, corev1.PodList]("pods", core.API).ShortNames("po"),
	},
}}}

// A test of a client uses nodes without a cluster.
func ExampleStart_fakeCluster() {
	test := func(t *testing.T) {
		client, err := kubernetes.NewForConfig(annextest.Start(t, fakeCluster))
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
	_ = test // go test calls it
}
