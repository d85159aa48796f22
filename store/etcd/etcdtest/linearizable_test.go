package etcdtest_test

import (
	"cmp"
	"os"
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// The store is upstream's, behind its watch cache; reads at revision "0" come from the cache alone, and may be late.
func TestLinearizable(t *testing.T) {
	members := startCluster(t, 1, nil)
	storetest.RunLinearizable(t, "etcd", storetest.Subject{
		Cached:    true,
		Histories: 30,
		Start: func(t testing.TB) (storage.Interface, func()) {
			return openPods(t, open(t, members, nil)), func() {}
		},
	})
}

// TestLinearizable_elections kills the leader of three members in the middle of ANNEX_ETCD_HISTORIES histories: each
// kill needs an election. There is no watch cache, whose history would begin anew with each backend: watches resume
// where they were.
func TestLinearizable_elections(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for elections")
	}
	t.Setenv("ANNEX_HISTORIES", cmp.Or(os.Getenv("ANNEX_ETCD_HISTORIES"), "4"))
	members := startProcesses(t, 3)
	var killed *clusterMember
	storetest.RunLinearizable(t, "etcd, leaders killed", storetest.Subject{
		Start: func(t testing.TB) (storage.Interface, func()) {
			if killed != nil {
				killed.start()
				killed = nil
			}
			members.caughtUp()
			backend, err := etcd.Open(t.Context(), etcd.Options{Endpoints: members.endpoints(), NoWatchCache: true, StartTimeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			return openPods(t, backend), func() {
				if err := backend.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		},
		Crash: func(testing.TB) {
			killed = members.leader(anyone)
			killed.kill()
		},
	})
}
