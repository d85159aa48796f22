// Package sequences sends the same random sequences of requests to `annex serve` and to a real kube-apiserver, and
// compares their responses and the events of watches.
package sequences

import (
	"os"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{
		Controllers:           []string{"namespace-controller", "garbage-collector-controller"},
		ControllerManagerArgs: []string{"--kube-api-qps", "1000", "--kube-api-burst", "1000"},
	}, func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}
