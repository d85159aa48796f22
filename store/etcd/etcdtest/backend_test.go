package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// open opens a backend on the members, closed with the test.
func open(t testing.TB, members []*member, change func(*etcd.Options)) store.Backend {
	t.Helper()
	options := etcd.Options{Endpoints: endpoints(members), StartTimeout: patience}
	if change != nil {
		change(&options)
	}
	backend, err := etcd.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return backend
}

func openPods(t testing.TB, backend store.Backend) storage.Interface {
	t.Helper()
	pods, err := backend.Open(storetest.Pods("/pods"))
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage is ready", func(context.Context) error { return pods.ReadinessCheck() })
	return pods
}

func key(name string) string { return "/pods/ns/" + name }

func create(ctx context.Context, pods storage.Interface, name string) (*example.Pod, error) {
	created := &example.Pod{}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	return created, pods.Create(ctx, key(name), pod, created, 0)
}

func mustCreate(t testing.TB, pods storage.Interface, name string) *example.Pod {
	t.Helper()
	created, err := create(t.Context(), pods, name)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// createAnyway writes until it succeeds, as a client does after a retryable error.
func createAnyway(t testing.TB, pods storage.Interface, name string) {
	t.Helper()
	testwait.NoError(t, "create "+name, func(ctx context.Context) error {
		_, err := create(ctx, pods, name)
		if storage.IsExist(err) {
			return nil // an earlier attempt has arrived after all
		}
		return err
	})
}

func watchFrom(t testing.TB, pods storage.Interface, revision string) watch.Interface {
	t.Helper()
	w, err := pods.Watch(t.Context(), "/pods/", storage.ListOptions{
		ResourceVersion: revision, Predicate: storage.Everything, Recursive: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func expectAdded(t testing.TB, w watch.Interface, name string) {
	t.Helper()
	select {
	case event, open := <-w.ResultChan():
		if !open {
			t.Fatalf("the watch has ended before %s", name)
		}
		object := event.Object
		if shared, ok := object.(apiruntime.CacheableObject); ok {
			object = shared.GetObject()
		}
		pod, ok := object.(*example.Pod)
		if !ok || event.Type != watch.Added || pod.Name != name {
			t.Fatalf("got %s %v, want %s added", event.Type, event.Object, name)
		}
	case <-time.After(patience):
		t.Fatalf("no event for %s", name)
	}
}

// variants are the storages that a test runs on.
var variants = map[string]func(*etcd.Options){
	"watch cache": nil,
	"direct":      func(o *etcd.Options) { o.NoWatchCache = true },
}

func TestWatch_etcdRestart_resumes(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			members := startCluster(t, 1, nil)
			backend := open(t, members, change)
			pods := openPods(t, backend)
			before := mustCreate(t, pods, "before")
			w := watchFrom(t, pods, before.ResourceVersion)
			mustCreate(t, pods, "first")
			expectAdded(t, w, "first")

			members[0].stop()
			testwait.NoError(t, "health without etcd", func(context.Context) error { return unhealthy(backend, members[0].endpoint()) })
			members[0].start(t)
			members[0].waitReady(t)

			testwait.NoError(t, "health with etcd", func(context.Context) error { return backend.Health() })
			createAnyway(t, pods, "second")
			expectAdded(t, w, "second")
		})
	}
}

// unhealthy returns nil if Health returns an error that names all the endpoints.
func unhealthy(backend store.Backend, endpoints ...string) error {
	err := backend.Health()
	if err == nil {
		return errors.New("it says to be healthy")
	}
	for _, endpoint := range endpoints {
		if !strings.Contains(err.Error(), endpoint) {
			return fmt.Errorf("%s is not named: %w", endpoint, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		return fmt.Errorf("more than one line: %w", err)
	}
	return nil
}

func TestBackend_oneOfThreeMembersStops(t *testing.T) {
	for _, role := range []string{"follower", "leader"} {
		t.Run(role, func(t *testing.T) {
			members := startCluster(t, 3, nil)
			backend := open(t, members, nil)
			pods := openPods(t, backend)
			w := watchFrom(t, pods, mustCreate(t, pods, "before").ResourceVersion)

			for _, m := range members {
				if m.leads() == (role == "leader") {
					m.stop()
					break
				}
			}
			for i := range 20 {
				name := "with-two-" + strconv.Itoa(i)
				createAnyway(t, pods, name)
				expectAdded(t, w, name)
				got := &example.Pod{}
				if err := pods.Get(t.Context(), key(name), storage.GetOptions{}, got); err != nil {
					t.Errorf("get %s: %v", name, err)
				}
			}
			if role == "follower" { // no election is needed
				if err := backend.Health(); err != nil {
					t.Errorf("health with two members: %v", err)
				}
			}
			testwait.NoError(t, "health with two members", func(context.Context) error { return backend.Health() })
		})
	}
}

func TestHealth_noMajority_namesReason(t *testing.T) {
	members := startCluster(t, 3, nil)
	backend := open(t, members, nil)
	pods := openPods(t, backend)
	mustCreate(t, pods, "before")

	members[0].stop()
	members[1].stop()
	testwait.NoError(t, "health with one member", func(context.Context) error {
		return unhealthy(backend, members[0].endpoint(), members[1].endpoint())
	})

	members[0].start(t)
	members[0].waitReady(t)
	testwait.NoError(t, "health with two members", func(context.Context) error { return backend.Health() })
	createAnyway(t, pods, "after")
	if err := pods.Get(t.Context(), key("before"), storage.GetOptions{}, &example.Pod{}); err != nil {
		t.Error(err)
	}
}

func TestHealth_fullEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	backend := open(t, members, nil)
	c := client(t, members)
	maintenance := etcdserverpb.NewMaintenanceClient(c.ActiveConnection())
	alarm := &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
		MemberID: uint64(members[0].etcd.Server.MemberID()),
	}
	if _, err := maintenance.Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "health with a full etcd", func(context.Context) error {
		if err := unhealthy(backend, members[0].endpoint()); err != nil || strings.Contains(backend.Health().Error(), "full") {
			return err
		}
		return fmt.Errorf("it does not say that etcd is full: %w", backend.Health())
	})
	if err := unhealthy(open(t, members, nil), members[0].endpoint()); err != nil {
		t.Errorf("a backend opened on a full etcd: %v", err)
	}

	alarm.Action = etcdserverpb.AlarmRequest_DEACTIVATE
	if _, err := maintenance.Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "health with room", func(context.Context) error { return backend.Health() })
}

func TestRevision_followsEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	backend := open(t, members, nil)
	pods := openPods(t, backend)
	created := mustCreate(t, pods, "own")
	if got, want := strconv.FormatUint(backend.Revision(), 10), created.ResourceVersion; got != want {
		t.Errorf("revision %s after a write, want %s", got, want)
	}

	put, err := client(t, members).Put(t.Context(), "another writer's", "")
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the revision of another writer's write", func(context.Context) error {
		if got := backend.Revision(); got < uint64(put.Header.Revision) {
			return fmt.Errorf("revision %d, want %d", got, put.Header.Revision)
		}
		return nil
	})
}

func TestPrefix_separatesServers(t *testing.T) {
	members := startCluster(t, 1, nil)
	one := openPods(t, open(t, members, nil))
	two := openPods(t, open(t, members, func(o *etcd.Options) { o.Prefix = "/other" }))
	replica := openPods(t, open(t, members, nil))
	mustCreate(t, one, "a")

	for name, c := range map[string]struct {
		pods storage.Interface
		want int
	}{"same prefix": {replica, 1}, "other prefix": {two, 0}} {
		list := &example.PodList{}
		if err := c.pods.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != c.want {
			t.Errorf("%s: %d objects, want %d", name, len(list.Items), c.want)
		}
	}
	found, err := client(t, members).Get(t.Context(), etcd.DefaultPrefix+key("a"))
	if err != nil || found.Count != 1 {
		t.Errorf("%d keys %s (%v), want 1", found.Count, etcd.DefaultPrefix+key("a"), err)
	}
}

func TestSnapshot_holdsOnlyObjects(t *testing.T) {
	members := startCluster(t, 1, nil)
	backend := open(t, members, nil)
	mustCreate(t, openPods(t, backend), "a")
	if _, err := client(t, members).Put(t.Context(), etcd.DefaultPrefix+"/health", "kine's"); err != nil {
		t.Fatal(err)
	}
	snapshot, err := backend.(store.Maintenance).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	var keys []string
	for value, err := range snapshot.Values(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, value.Key)
	}
	if want := []string{key("a")}; !slices.Equal(keys, want) {
		t.Errorf("got %q, want %q", keys, want)
	}
}

func TestCompactionInterval_compactsHistory(t *testing.T) {
	members := startCluster(t, 1, nil)
	pods := openPods(t, open(t, members, func(o *etcd.Options) { o.CompactionInterval = 100 * time.Millisecond }))
	created := mustCreate(t, pods, "a")
	revision, err := strconv.ParseInt(created.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, members)
	testwait.NoError(t, "compaction", func(ctx context.Context) error {
		status, err := c.Get(ctx, "compact_rev_key")
		if err != nil {
			return err
		}
		for _, kv := range status.Kvs {
			if compacted, err := strconv.ParseInt(string(kv.Value), 10, 64); err == nil && compacted >= revision {
				return nil
			}
		}
		return fmt.Errorf("nothing is compacted up to %d", revision)
	})
}

func TestClose_endsWatchesAndGoroutines(t *testing.T) {
	for name, down := range map[string]bool{"etcd runs": false, "etcd is down": true} {
		t.Run(name, func(t *testing.T) {
			members := startCluster(t, 1, nil)
			backend := open(t, members, nil)
			pods := openPods(t, backend)
			direct, err := backend.Open(store.Resource{
				Resource: storetest.Pods("/d").Resource, Prefix: "/direct", Codec: storetest.PodCodec(),
				New: storetest.Pods("/d").New, NewList: storetest.Pods("/d").NewList,
			})
			if err != nil {
				t.Fatal(err)
			}
			watches := []watch.Interface{watchFrom(t, pods, "0")}
			w, err := direct.Watch(t.Context(), "/direct/", storage.ListOptions{Predicate: storage.Everything, Recursive: true})
			if err != nil {
				t.Fatal(err)
			}
			watches = append(watches, w)
			if down {
				members[0].stop()
			}

			if err := backend.Close(); err != nil {
				t.Fatal(err)
			}
			for i, w := range watches {
				if err := ended(w); err != nil {
					t.Errorf("watch %d: %v", i, err)
				}
			}
			if _, err := create(t.Context(), pods, "late"); !errors.Is(err, etcd.ErrClosed) {
				t.Errorf("create after close: %v", err)
			}
			if _, err := backend.Open(storetest.Pods("/late")); !errors.Is(err, etcd.ErrClosed) {
				t.Errorf("open after close: %v", err)
			}
			if err := backend.Health(); !errors.Is(err, etcd.ErrClosed) {
				t.Errorf("health after close: %v", err)
			}
			if err := backend.Close(); err != nil {
				t.Errorf("close again: %v", err)
			}
			members[0].stop()
			testwait.NoError(t, "all goroutines end", func(context.Context) error { return leftover() })
		})
	}
}

func ended(w watch.Interface) error {
	timeout := time.After(patience)
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return nil
			}
		case <-timeout:
			return errors.New("it goes on after close")
		}
	}
}

// leftover returns an error that names a goroutine of a storage.
func leftover() error {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		for _, owner := range []string{"annex/store/etcd.", "apiserver/pkg/storage/cacher", "apiserver/pkg/storage/etcd3.", "etcd/client/v3.",
			"google.golang.org/grpc.(*ClientConn)"} {
			if strings.Contains(stack, owner) && !strings.Contains(stack, "leftover") {
				return errors.New(stack)
			}
		}
	}
	return nil
}
