// Package foreign runs the deliverables of other projects against `annex serve`: their definitions and samples,
// compared with a real kube-apiserver, their own tests, Helm, and controllers.
package foreign

import (
	"os"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{}}, func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}
