// Package fairness compares flow schemas and priority levels with those of a real kube-apiserver.
package fairness

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
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{}}, func(c *kube.Cluster) error {
		host = c
		var err error
		admin, err = kubernetes.NewForConfig(c.Admin())
		return err
	}))
}
