// Package kubectl replays kubectl's output for a cluster on a real kube-apiserver and on `annex serve`.
package kubectl

import (
	"os"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{
		"namespace-controller", "garbage-collector-controller", "resourcequota-controller",
		"serviceaccount-controller", "root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller",
	}}, func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}
