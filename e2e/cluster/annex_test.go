package cluster

import (
	"path/filepath"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

func TestAnnexOnEtcd(t *testing.T) { behave(t, startAnnex, "annex-etcd", startEtcd(t)) }

func TestAnnexEmbedded(t *testing.T) { behave(t, startAnnex, "annex-embedded", nil) }

// startAnnex starts the wardle sample of this repository, with the keys and values in
// etcd that upstream's has.
func startAnnex(t *testing.T, name string, etcd *kube.Etcd) *wardle {
	t.Helper()
	data := filepath.Join(run, name)
	return newWardle(t, name, "wardle", etcd, func(common []string) []string {
		args := append([]string{"serve", "--aggregated", "--data-dir", data}, common...)
		if etcd == nil {
			return args
		}
		return append(args, "--storage", "etcd", "--etcd-servers", etcd.Endpoint(), "--etcd-prefix", "/registry/"+group)
	})
}
