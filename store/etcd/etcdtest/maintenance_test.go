package etcdtest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

func TestMaintenance(t *testing.T) {
	storetest.RunMaintenance(t, func(t *testing.T) store.Maintenance {
		members := startCluster(t, 1, nil)
		return open(t, members, func(o *etcd.Options) { o.Prefix = "/some/where" }).(store.Maintenance)
	})
}

// etcd would keep a lease without an object until the lease ends.
func TestPut_rejected_leavesNoLease(t *testing.T) {
	members := startCluster(t, 1, nil)
	backend := open(t, members, nil).(store.Maintenance)
	v := store.Value{Key: "/pods/ns/a", Data: []byte("{}"), Expires: time.Now().Add(time.Hour)}
	if _, err := backend.Put(t.Context(), v, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := backend.Put(t.Context(), v, 0); !errors.Is(err, store.ErrChanged) {
		t.Errorf("got %v", err)
	}
	leases, err := client(t, members).Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Errorf("leases: %v, %v", leases, err)
	}
}
