package etcdtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/etcd"
)

// most is the number of widgets that limited replicas admit.
const most = 10

// limitedShop admits a limited number of widgets. looked, which may be nil, is called when a create has counted the
// others, and before it writes.
func limitedShop(looked func(existing int)) annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).AdmitCreate(
			func(_ context.Context, _ annex.Request[v1.Widget], existing []*v1.Widget) error {
				if looked != nil {
					looked(len(existing))
				}
				if len(existing) >= most {
					return fmt.Errorf("no more than %d widgets may be", most)
				}
				return nil
			}),
	}}}}
}

// limitedReplica starts a server of limitedShop.
func limitedReplica(t *testing.T, members []*member, looked func(existing int)) dynamic.ResourceInterface {
	t.Helper()
	config := annextest.StartWith(t, limitedShop(looked), annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})})
	return dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
}

func isFull(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "no more than 10 widgets may be")
}

func TestAdmitCreate_replicas_isExact(t *testing.T) {
	members := startCluster(t, 1, nil)
	replicas := []dynamic.ResourceInterface{limitedReplica(t, members, nil), limitedReplica(t, members, nil)}
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			_, err := replicas[i%2].Create(t.Context(), newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case !isFull(err):
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	all.Wait()
	list, err := replicas[0].List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != most || made.Load() != most {
		t.Errorf("%d widgets, %d creates acknowledged; want %d each", len(list.Items), made.Load(), most)
	}
}

// Sixteen writers take ten places and release them again. At no revision are there more than ten widgets, and every
// writer gets a place in the end.
func TestAdmitCreate_replicas_racingDeletes(t *testing.T) {
	const writers, rounds = 16, 5
	members := startCluster(t, 1, nil)
	replicas := []dynamic.ResourceInterface{limitedReplica(t, members, nil), limitedReplica(t, members, nil)}
	ctx := t.Context()
	w, err := replicas[0].Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			name := fmt.Sprint("w", i)
			for round := range rounds {
				for {
					_, err := replicas[(i+round)%2].Create(ctx, newWidget(name), metav1.CreateOptions{})
					if err == nil {
						break
					}
					if !isFull(err) {
						t.Errorf("create %s: %v", name, err)
						return
					}
				}
				if err := replicas[i%2].Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete %s: %v", name, err)
					return
				}
			}
		})
	}
	all.Wait()
	for live, created := 0, 0; created < writers*rounds || live > 0; {
		switch e := <-w.ResultChan(); e.Type {
		case watch.Added:
			live++
			created++
		case watch.Deleted:
			live--
		default:
			t.Fatalf("%v", e)
		}
		if live > most {
			t.Fatalf("%d widgets at a time", live)
		}
	}
}

// A replica that has counted nine other widgets, and does not write before another replica creates the tenth, counts
// again.
func TestAdmitCreate_fasterReplica_countsAgain(t *testing.T) {
	members := startCluster(t, 1, nil)
	counted, proceed := make(chan int), make(chan struct{})
	var slow atomic.Bool
	var seen []int
	one := limitedReplica(t, members, func(existing int) {
		if slow.Load() {
			seen = append(seen, existing)
			counted <- existing
			<-proceed
		}
	})
	other := limitedReplica(t, members, nil)
	ctx := t.Context()
	for i := range most - 1 {
		if _, err := one.Create(ctx, newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	slow.Store(true)
	late := make(chan error, 1)
	go func() {
		_, err := one.Create(ctx, newWidget("late"), metav1.CreateOptions{})
		late <- err
	}()
	<-counted
	if _, err := other.Create(ctx, newWidget("faster"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proceed <- struct{}{}
	var err error
	select {
	case <-counted:
		proceed <- struct{}{}
		err = <-late
	case err = <-late:
	}
	if !isFull(err) {
		t.Errorf("the create that came too late: %v", err)
	}
	if !slices.Equal(seen, []int{9, 10}) {
		t.Errorf("it counted %v others", seen)
	}
}

// A replica that dies between counting and writing leaves nothing behind to clean up: others can take the place.
func TestAdmitCreate_deathBeforeWrite_leavesNothing(t *testing.T) {
	members := startCluster(t, 1, nil)
	counted, proceed := make(chan struct{}), make(chan struct{})
	var dying atomic.Bool
	one := limitedReplica(t, members, func(int) {
		if dying.Load() {
			counted <- struct{}{}
			<-proceed
		}
	})
	other := limitedReplica(t, members, nil)
	ctx := t.Context()
	for i := range most - 1 {
		if _, err := one.Create(ctx, newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	dying.Store(true)
	request, die := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := one.Create(request, newWidget("dead"), metav1.CreateOptions{})
		ended <- err
	}()
	<-counted
	die()
	if err := <-ended; err == nil {
		t.Error("the request that was cut off succeeded")
	}
	if _, err := other.Create(ctx, newWidget("tenth"), metav1.CreateOptions{}); err != nil {
		t.Errorf("the place is not free: %v", err)
	}
	dying.Store(false)
	close(proceed)
	if _, err := other.Get(ctx, "dead", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the request that was cut off has written: %v", err)
	}
	if err := other.Delete(ctx, "w0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Create(ctx, newWidget("after"), metav1.CreateOptions{}); err != nil {
		t.Errorf("after the request that was cut off: %v", err)
	}
}

// One of two replicas is killed while both create. Its acknowledged objects exist, and every taken place has an
// object.
func TestAdmitCreate_killedReplica(t *testing.T) {
	members := startCluster(t, 1, nil)
	args := []string{"--storage", "etcd", "--etcd-servers", endpoints(members)[0]}
	victim, survivor := newServerAs(t, roleLimited, "victim", args...), newServerAs(t, roleLimited, "survivor", args...)
	survivor.start()
	objects := func(s *server) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(s.config()).Resource(widgets).Namespace("default")
	}
	ctx := t.Context()
	for round := range 3 {
		victim.start()
		replicas := []dynamic.ResourceInterface{objects(victim), objects(survivor)}
		var made, left atomic.Int32
		left.Store(1 + rand.Int32N(most-1)) // creates until it is killed
		var kill sync.Once
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				_, err := replicas[i%2].Create(ctx, newWidget(fmt.Sprintf("r%d-%d", round, i)), metav1.CreateOptions{})
				switch {
				case err == nil:
					made.Add(1)
					if left.Add(-1) <= 0 {
						kill.Do(victim.kill)
					}
				case i%2 == 1 && !isFull(err):
					t.Errorf("create at the survivor: %v", err)
				}
			})
		}
		all.Wait()
		kill.Do(victim.kill)
		there := func() int {
			list, err := objects(survivor).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		if n := there(); n > most || n < int(made.Load()) {
			t.Errorf("%d widgets after %d were acknowledged", n, made.Load())
		}
		// A create that the victim had sent to etcd may still arrive, and then takes its place.
		for i := 0; i < 2*most && there() < most; i++ {
			if _, err := objects(
				survivor,
			).Create(ctx, newWidget(fmt.Sprintf("f%d-%d", round, i)), metav1.CreateOptions{}); err != nil &&
				!isFull(err) {
				t.Error(err)
			}
		}
		if _, err := objects(survivor).Create(ctx, newWidget("eleventh"), metav1.CreateOptions{}); !isFull(err) {
			t.Errorf("the eleventh: %v", err)
		}
		if n := there(); n != most {
			t.Errorf("%d widgets in the end", n)
		}
		if err := objects(survivor).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
