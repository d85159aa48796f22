package etcdtest_test

import (
	"testing"

	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

func TestValues(t *testing.T) {
	members := startCluster(t, 1, nil)
	for _, prefix := range []string{"", "/", "a/b/"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			backend := open(t, members, func(o *etcd.Options) { o.Prefix = prefix })
			storetest.CheckValues(t, backend, openPods(t, backend))
		})
	}
}
