// Package rbac compares a server's authorization with that of a real kube-apiserver.
package rbac

import (
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

var (
	host  *kube.Cluster
	admin *kubernetes.Clientset
)

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{"clusterrole-aggregation-controller"}}, func(c *kube.Cluster) error {
		host = c
		var err error
		admin, err = kubernetes.NewForConfig(c.Admin())
		return err
	}))
}
