package etcdtest_test

import (
	"testing"

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
