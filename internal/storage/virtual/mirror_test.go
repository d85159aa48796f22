package virtual

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/storetest"
)

func pod(name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func key(name string) string { return "/pods/ns/" + name }

// During concurrent changes by clients and by the system, a watch delivers the states of every object in the order of
// the system, and ends with the state of the system. So does a list.
func TestWatch_concurrentChanges(t *testing.T) {
	for name, prepare := range map[string]func(*podSystem, *define.Source){
		"fed":                func(*podSystem, *define.Source) {},
		"polled":             func(_ *podSystem, d *define.Source) { d.Changes, d.Poll = nil, time.Millisecond },
		"fed, no versions":   func(s *podSystem, _ *define.Source) { s.unversioned = true },
		"polled and slow":    func(s *podSystem, d *define.Source) { d.Changes, d.Poll, s.slow = nil, time.Millisecond, pause },
		"fed, slow":          func(s *podSystem, _ *define.Source) { s.slow = pause },
		"polled, fed, loose": func(s *podSystem, d *define.Source) { d.Poll, s.unversioned, s.slow = time.Millisecond, true, pause },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			s := newPodSystem()
			s.stamps = true
			source := s.source()
			prepare(s, source)
			m := openPods(t, source)
			w, err := m.Watch(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			var all sync.WaitGroup
			for worker := range 6 {
				all.Go(func() { meddle(t, s, m, rand.New(rand.NewPCG(seed, uint64(worker)))) })
			}
			state := map[string]string{}
			done := make(chan struct{})
			go func() { defer close(done); follow(t, w, state) }()
			all.Wait()
			if err := m.Create(t.Context(), key("last"), pod("last"), nil, 0); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Fatal("the watch never tells of the last pod")
			}
			list := &example.PodList{}
			if err := m.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
				t.Fatal(err)
			}
			listed, has := map[string]string{}, map[string]string{}
			for _, p := range list.Items {
				listed[p.Name] = p.Annotations["at"]
			}
			for _, p := range s.pods {
				has[p.Name] = p.Annotations["at"]
			}
			if !maps.Equal(listed, has) {
				t.Errorf("listed %v, the system has %v", listed, has)
			}
			// Changes just before the last pod may be delivered after it.
			for deadline := time.Now().Add(30 * time.Second); !maps.Equal(state, has); {
				select {
				case e := <-w.ResultChan():
					step(t, state, e)
				case <-time.After(time.Until(deadline)):
					t.Fatalf("watched %v, the system has %v", state, has)
				}
			}
		})
	}
}

func pause() { time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond) }

// meddle reads and writes a few pods, through the mirror and directly in the system.
func meddle(t *testing.T, s *podSystem, m *Mirror, random *rand.Rand) {
	for range 150 {
		name := "p" + strconv.Itoa(random.IntN(4))
		var err error
		switch random.IntN(8) {
		case 0, 1:
			s.mu.Lock()
			s.put(pod(name))
			s.mu.Unlock()
		case 2:
			s.mu.Lock()
			delete(s.pods, "ns/"+name)
			s.notify("ns", name)
			s.mu.Unlock()
		case 3:
			err = m.Create(t.Context(), key(name), pod(name), &example.Pod{}, 0)
		case 4:
			err = m.GuaranteedUpdate(t.Context(), key(name), &example.Pod{}, random.IntN(2) == 0, nil,
				storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
					p := obj.(*example.Pod)
					p.Namespace, p.Name = "ns", name
					p.Labels = map[string]string{"n": strconv.Itoa(random.Int())}
					return p, nil
				}), nil)
		case 5:
			err = m.Delete(t.Context(), key(name), &example.Pod{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		case 6:
			err = m.Get(t.Context(), key(name), storage.GetOptions{}, &example.Pod{})
		default:
			err = m.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
		}
		if err != nil && !storage.IsNotFound(err) && !storage.IsExist(err) && !apierrors.IsConflict(err) &&
			!strings.Contains(err.Error(), "does not exist after it was written") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// follow applies a watch's events until the event of the pod "last".
func follow(t *testing.T, w watch.Interface, state map[string]string) {
	for e := range w.ResultChan() {
		step(t, state, e)
		if p, ok := e.Object.(metav1.ObjectMetaAccessor); ok && p.GetObjectMeta().GetName() == "last" {
			return
		}
	}
	t.Error("the watch ended")
}

func step(t *testing.T, state map[string]string, e watch.Event) {
	if e.Type == watch.Error {
		t.Errorf("the watch failed: %v", e.Object)
		return
	}
	p := e.Object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	at, before := p.GetAnnotations()["at"], state[p.GetName()]
	if number(at) < number(before) || e.Type == watch.Modified && at == before {
		t.Errorf("%s %s went from version %s to %s", e.Type, p.GetName(), before, at)
	}
	if _, known := state[p.GetName()]; known == (e.Type == watch.Added) {
		t.Errorf("%s of %s, which is known: %v", e.Type, p.GetName(), known)
	}
	if e.Type == watch.Deleted {
		delete(state, p.GetName())
		return
	}
	state[p.GetName()] = at
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// Concurrent reads of one object, and concurrent lists, share a call of the source, but never a call that started
// before them.
func TestRefresh_concurrentReaders_shareCalls(t *testing.T) {
	s := newPodSystem()
	source := s.source()
	source.Changes = nil // only the test calls the source
	asked, answer := make(chan struct{}), make(chan struct{})
	gets := 0
	source.Get = func(ctx context.Context, namespace, name string) (runtime.Object, error) {
		gets++
		asked <- struct{}{}
		<-answer
		return s.get(ctx, namespace, name)
	}
	m := openPods(t, source)
	get := func() error { return m.Get(t.Context(), key("p"), storage.GetOptions{}, &example.Pod{}) }
	var all sync.WaitGroup
	all.Go(func() { _ = get() })
	<-asked
	const waiting = 10
	for range waiting {
		all.Go(func() {
			if err := get(); err != nil {
				t.Error(err)
			}
		})
	}
	testwait.Until(t, "all readers wait", func() bool { return m.waiting("/pods/ns/p") == waiting+1 })
	s.mu.Lock()
	s.put(pod("p")) // the first reader may miss it, the others must not
	s.mu.Unlock()
	answer <- struct{}{}
	<-asked
	answer <- struct{}{}
	all.Wait()
	if gets != 2 {
		t.Errorf("the source was asked %d times for one reader and %d that waited, want twice", gets, waiting)
	}
	if n := len(m.turns); n != 0 {
		t.Errorf("%d turns are left", n)
	}
}

// waiting returns the number of callers that hold a turn or wait for it.
func (m *Mirror) waiting(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.turns[key]; t != nil {
		return t.wanted
	}
	return 0
}

func TestRefresh_readerCancels(t *testing.T) {
	s := newPodSystem()
	s.put(pod("p"))
	source := s.source()
	source.Changes = nil
	asked := make(chan struct{}, 2)
	first := true
	source.Get = func(ctx context.Context, namespace, name string) (runtime.Object, error) {
		asked <- struct{}{}
		if first {
			first = false
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return s.get(ctx, namespace, name)
	}
	m := openPods(t, source)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := m.Get(ctx, key("p"), storage.GetOptions{}, &example.Pod{}); !apierrors.IsTimeout(err) {
			t.Errorf("the one who went: %v", err)
		}
	})
	<-asked
	all.Go(func() {
		if err := m.Get(t.Context(), key("p"), storage.GetOptions{}, &example.Pod{}); err != nil {
			t.Errorf("the one who stayed: %v", err)
		}
	})
	gone, left := context.WithCancel(t.Context())
	left()
	if err := m.Get(gone, key("p"), storage.GetOptions{}, &example.Pod{}); !apierrors.IsTimeout(err) {
		t.Errorf("one who cannot wait: %v", err)
	}
	cancel()
	all.Wait()
}

// fragile is a codec that panics for one object.
type fragile struct{ runtime.Codec }

func (f fragile) Encode(object runtime.Object, w io.Writer) error {
	if pod, ok := object.(*example.Pod); ok && pod.Name == "bad" {
		panic("a mistake")
	}
	return f.Codec.Encode(object, w)
}

// Encoding calls code of users for every object in the mirror.
func TestPut_encodingPanics(t *testing.T) {
	s := newPodSystem()
	s.mu.Lock()
	s.put(pod("bad"))
	s.put(pod("good"))
	s.mu.Unlock()
	resource := storetest.Pods("/pods")
	resource.Codec = fragile{resource.Codec}
	m := openResource(t, s.source(), resource)
	get := func(name string) error {
		return m.Get(t.Context(), key(name), storage.GetOptions{}, &example.Pod{})
	}
	if err := get("bad"); err == nil || !strings.Contains(err.Error(), "a mistake") {
		t.Errorf("got %v", err)
	}
	if err := get("good"); err != nil {
		t.Error(err)
	}
}

func TestListen_feedEnds_isRestarted(t *testing.T) {
	s := newPodSystem()
	source := s.source()
	starts := make(chan struct{}, 100)
	feed := source.Changes
	failed := 0
	source.Changes = func(ctx context.Context, changed func(namespace, name string)) error {
		starts <- struct{}{}
		if failed++; failed == 1 {
			return errors.New("connection reset")
		}
		if failed == 2 {
			panic("a mistake")
		}
		return feed(ctx, changed)
	}
	m := openPods(t, source)
	w, err := m.Watch(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range 3 {
		<-starts
	}
	for i := range 2 * manyChanges { // enough for the follower to list
		s.mu.Lock()
		s.put(pod(fmt.Sprintf("p%d", i)))
		s.mu.Unlock()
	}
	for range 2 * manyChanges {
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Fatalf("got %v", e)
		}
	}
}

// A source that hangs until its context ends delays neither waiting callers beyond their deadlines nor the shutdown of
// the server.
func TestSource_hangs(t *testing.T) {
	s := newPodSystem()
	source := s.source()
	hanging := make(chan struct{}, 100)
	var hang atomic.Bool
	source.List = func(ctx context.Context) ([]runtime.Object, error) {
		if hang.Load() {
			hanging <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return s.list(ctx)
	}
	m := openPods(t, source)
	w, err := m.Watch(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	testwait.Until(t, "the feed has begun", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.changed != nil
	})
	s.mu.Lock()
	s.notify("", "")
	s.mu.Unlock()
	<-hanging
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = m.GetList(ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "waiting for the source of pods") {
		t.Errorf("got %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	for range w.ResultChan() { // until it is closed
	}
}

func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: firstRetry, 2: 2 * firstRetry, 4: 8 * firstRetry, 9: lastRetry, 100_000: lastRetry} {
		if got := backoff(failures); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
	}
}

// BenchmarkPoll polls 100,000 objects of which one has changed.
func BenchmarkPoll(b *testing.B) {
	const objects = 100_000
	for name, unversioned := range map[string]bool{"versions": false, "no versions": true} {
		b.Run(name, func(b *testing.B) {
			s := newPodSystem()
			s.unversioned = unversioned
			for i := range objects {
				p := pod(fmt.Sprintf("pod-%06d", i))
				p.Spec.NodeName = strings.Repeat("n", 300)
				s.put(p)
			}
			source := s.source()
			source.Changes = nil
			m := openPods(b, source)
			began := time.Now()
			if err := m.refreshAll(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(time.Since(began).Seconds(), "s/fill")
			for b.Loop() {
				s.put(pod("pod-000007"))
				if err := m.refreshAll(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
