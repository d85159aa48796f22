package etcdtest_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// patience bounds every wait. Only a failure reaches it.
const patience = testwait.Patience

// member is one etcd server, which can be stopped and started again.
type member struct {
	config embed.Config
	etcd   *embed.Etcd // nil while it is stopped
}

// startCluster starts the members of one cluster and waits until they have a leader. change may alter the
// configuration of each.
func startCluster(t testing.TB, size int, change func(*embed.Config)) []*member {
	t.Helper()
	var (
		members []*member
		names   []string
		ports   = freePorts(t, 2*size)
	)
	for i := range size {
		config := embed.NewConfig()
		config.Name = fmt.Sprintf("member-%d", i)
		config.Dir = filepath.Join(t.TempDir(), config.Name)
		config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		config.UnsafeNoFsync = true // a stopped member has written everything anyway
		client := url.URL{Scheme: "http", Host: ports[2*i]}
		peer := url.URL{Scheme: "http", Host: ports[2*i+1]}
		config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		if change != nil {
			change(config)
		}
		names = append(names, config.Name+"="+peer.String())
		members = append(members, &member{config: *config})
	}
	for _, m := range members {
		m.config.InitialCluster = strings.Join(names, ",")
		m.start(t)
		t.Cleanup(m.stop)
	}
	for _, m := range members {
		m.waitReady(t)
	}
	return members
}

func (m *member) start(t testing.TB) {
	t.Helper()
	config := m.config
	var err error
	if m.etcd, err = embed.StartEtcd(&config); err != nil {
		t.Fatalf("start %s: %v", m.config.Name, err)
	}
}

func (m *member) waitReady(t testing.TB) {
	t.Helper()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case err := <-m.etcd.Err():
		t.Fatalf("%s: %v", m.config.Name, err)
	case <-time.After(patience):
		t.Fatalf("%s is not ready", m.config.Name)
	}
}

func (m *member) stop() {
	if m.etcd != nil {
		m.etcd.Close()
		m.etcd = nil
	}
}

func (m *member) endpoint() string { return m.config.ListenClientUrls[0].String() }

func (m *member) address() string { return m.config.ListenClientUrls[0].Host }

func (m *member) leads() bool { return m.etcd.Server.Leader() == m.etcd.Server.MemberID() }

func endpoints(members []*member) []string {
	var all []string
	for _, m := range members {
		all = append(all, m.endpoint())
	}
	return all
}

// client returns a client that belongs to the test, not to the backend.
func client(t testing.TB, members []*member) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints(members), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// freePorts returns loopback addresses that no process listens on. A member has to know its port before it starts,
// and to get it again at a restart, so the ports are outside of the range from which the kernel chooses ephemeral
// ones.
func freePorts(t testing.TB, count int) []string {
	t.Helper()
	var addresses []string
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }()
		addresses = append(addresses, l.Addr().String())
		if len(addresses) == count {
			return addresses
		}
	}
	t.Fatal("no free ports between 20000 and 30000")
	return nil
}

func writeFile(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
