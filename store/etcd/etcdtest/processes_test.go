package etcdtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// cluster is an etcd whose members are processes, each behind proxies for its clients and for the other members.
type cluster struct {
	t       *testing.T
	members []*clusterMember
}

type clusterMember struct {
	*role
	name         string
	id           string // in the form that peers use
	client, peer *proxy
	direct       string // the address without the proxy
}

func startProcesses(t *testing.T, size int) *cluster {
	t.Helper()
	c := &cluster{t: t}
	ports := freePorts(t, 2*size)
	var roles []memberRole
	var names []string
	for i := range size {
		client, peer := ports[2*i], ports[2*i+1]
		m := &clusterMember{
			name:   fmt.Sprintf("member-%d", i),
			client: startProxy(t, client),
			peer:   startProxy(t, peer),
			direct: "http://" + client,
		}
		c.members = append(c.members, m)
		roles = append(roles, memberRole{
			Name: m.name, Dir: filepath.Join(t.TempDir(), m.name), Client: client, Peer: peer,
			AdvertiseClient: m.client.address(), AdvertisePeer: m.peer.address(),
		})
		names = append(names, m.name+"=http://"+m.peer.address())
	}
	for i, m := range c.members {
		roles[i].Cluster = strings.Join(names, ",")
		encoded, err := json.Marshal(roles[i])
		if err != nil {
			t.Fatal(err)
		}
		m.role = newRole(t, m.name, string(encoded))
	}
	for _, m := range c.members { // it has started before it finds the others
		m.start()
	}
	c.identify()
	return c
}

// identify asks etcd for the members' names.
func (c *cluster) identify() {
	c.t.Helper()
	client := c.connect(c.endpoints()...)
	testwait.NoError(c.t, "the members are known", func(ctx context.Context) error {
		list, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, known := range list.Members {
			for _, m := range c.members {
				if m.name == known.Name {
					m.id = strconv.FormatUint(known.ID, 16)
				}
			}
		}
		for _, m := range c.members {
			if m.id == "" {
				return fmt.Errorf("%s is unknown", m.name)
			}
		}
		return nil
	})
}

func (c *cluster) endpoints() []string {
	var all []string
	for _, m := range c.members {
		all = append(all, "http://"+m.client.address())
	}
	return all
}

func (c *cluster) connect(endpoints ...string) *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// leader waits for the leader according to the members for which ask is true.
func (c *cluster) leader(ask func(*clusterMember) bool) *clusterMember {
	c.t.Helper()
	var leader *clusterMember
	testwait.NoError(c.t, "a leader", func(ctx context.Context) error {
		for _, asked := range c.members {
			if asked.cmd == nil || !ask(asked) {
				continue
			}
			for _, m := range c.members {
				if asked.leaderID(ctx) == m.id && ask(m) {
					leader = m
					return nil
				}
			}
		}
		return errors.New("no replica leads")
	})
	return leader
}

func anyone(*clusterMember) bool { return true }

// leaderID returns the ID of the leader, to the member's knowledge.
func (m *clusterMember) leaderID(ctx context.Context) string {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.direct}, Logger: zap.NewNop()})
	if err != nil {
		return ""
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := client.Status(ctx, m.direct)
	if err != nil || status.Leader == 0 {
		return ""
	}
	return strconv.FormatUint(status.Leader, 16)
}

// cut separates a member from the others and from all clients, breaking connections or in silence.
func (c *cluster) cut(m *clusterMember, breaks bool) {
	everyone := func(string) bool { return true }
	m.client.cut(everyone, breaks)
	m.peer.cut(everyone, breaks)
	for _, other := range c.members {
		if other != m {
			other.peer.cut(func(from string) bool { return from == m.id }, breaks)
		}
	}
}

func (c *cluster) heal() {
	for _, m := range c.members {
		m.client.cut(nil, true)
		m.peer.cut(nil, true)
	}
}

// caughtUp waits until every member takes part in a linearizable read.
func (c *cluster) caughtUp() {
	c.t.Helper()
	for _, m := range c.members {
		client := c.connect(m.direct)
		testwait.NoError(c.t, m.name+" takes part", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := client.Get(ctx, "nothing")
			return err
		})
		_ = client.Close()
	}
}
