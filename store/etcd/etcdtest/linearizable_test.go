package etcdtest_test

import (
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store/storetest"
)

// The store is upstream's, behind its watch cache; reads at revision "0" come from
// that alone, and may be late.
func TestLinearizable(t *testing.T) {
	members := startCluster(t, 1, nil)
	storetest.RunLinearizable(t, "etcd", storetest.Subject{
		Cached: true,
		Start: func(t testing.TB) (storage.Interface, func()) {
			return openPods(t, open(t, members, nil)), func() {}
		},
	})
}
