package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/journal"
)

// RunRestart checks the guarantees of the revisioned core across a restart above a durable journal.
func RunRestart(t *testing.T, open OpenJournal) {
	tests := []struct {
		name string
		run  func(t *testing.T, s *restartable)
	}{
		{"a watch goes on from before the restart", resumesWatch},
		{"a list at an older revision is the same", listsExactly},
		{"a deleted object stays deleted and stays in the history", keepsTombstones},
		{"an object expires after the restart", expiresAfterwards},
		{"an object expires while nothing runs", expiresMeanwhile},
		{"the compacted revision stays compacted", staysCompacted},
		{"no revision is used twice", neverReusesRevision},
		{"no revision is used twice after a compacted deletion", neverReusesCompactedRevision},
		{"a journal that jumped goes on above", continuesAfterJump},
		{"an object from before the window is the previous one of a later event", keepsPrevious},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &restartable{
				dir:   t.TempDir(),
				open:  open,
				clock: clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
			}
			s.start(t)
			t.Cleanup(func() { s.stop(t) })
			test.run(t, s)
		})
	}
}

const (
	windowAge       = time.Minute
	windowRevisions = 5
)

// restartable is a core above a journal in a directory, and the pods in it.
type restartable struct {
	dir   string
	open  OpenJournal
	clock *clocktesting.FakeClock
	core  *mvcc.Core
	pods  storage.Interface
}

func (s *restartable) start(t testing.TB) {
	t.Helper()
	j, err := s.open(t, s.dir)
	if err != nil {
		t.Fatal(err)
	}
	s.core, err = mvcc.Open(t.Context(), j, mvcc.Options{
		History: mvcc.History{MinAge: windowAge, MinRevisions: windowRevisions},
		Clock:   s.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.pods, err = s.core.Open(Pods("/pods")); err != nil {
		t.Fatal(err)
	}
}

func (s *restartable) stop(t testing.TB) {
	t.Helper()
	if err := s.core.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *restartable) restart(t testing.TB) {
	t.Helper()
	s.stop(t)
	s.start(t)
}

func (s *restartable) create(t testing.TB, name string, ttl uint64, set labels.Set) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: set}}
	if err := s.pods.Create(context.Background(), podKey("ns", name), pod, out, ttl); err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *restartable) label(t testing.TB, name string, set labels.Set) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := s.pods.GuaranteedUpdate(context.Background(), podKey("ns", name), out, false, nil,
		storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
			object.(*example.Pod).Labels = set
			return object, nil
		}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *restartable) delete(t testing.TB, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := s.pods.Delete(context.Background(), podKey("ns", name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// passWindow makes everything written so far leave the history.
func (s *restartable) passWindow(t testing.TB) {
	t.Helper()
	for i := range windowRevisions {
		name := fmt.Sprintf("passing-%d-%d", s.core.Revision(), i)
		s.create(t, name, 0, nil)
	}
	s.clock.Step(windowAge + time.Second)
	if err := s.core.CompactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// listAt lists the pods at a revision.
func (s *restartable) listAt(t testing.TB, resourceVersion string) []example.Pod {
	t.Helper()
	list := &example.PodList{}
	err := s.pods.GetList(context.Background(), "/pods/ns", storage.ListOptions{
		ResourceVersion:      resourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Recursive:            true,
		Predicate:            storage.Everything,
	}, list)
	if err != nil {
		t.Fatal(err)
	}
	if list.ResourceVersion != resourceVersion {
		t.Errorf("list at resource version %s says %s", resourceVersion, list.ResourceVersion)
	}
	return list.Items
}

// watchFrom watches the pods that match a selector.
func (s *restartable) watchFrom(t testing.TB, resourceVersion, selector string) watch.Interface {
	t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.pods.Watch(context.Background(), "/pods/ns", storage.ListOptions{
		ResourceVersion: resourceVersion,
		Recursive:       true,
		Predicate:       storage.SelectionPredicate{Label: parsed, GetAttrs: storage.DefaultNamespaceScopedAttr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// receiveTimeout bounds the time that a test waits for an event before it fails.
const receiveTimeout = 30 * time.Second

func receive(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		if cacheable, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = cacheable.GetObject()
		}
		return event
	case <-time.After(receiveTimeout):
		t.Fatal("no event came")
	}
	return watch.Event{}
}

func expect(t testing.TB, w watch.Interface, kind watch.EventType, pod *example.Pod) {
	t.Helper()
	if diff := cmp.Diff(watch.Event{Type: kind, Object: pod}, receive(t, w)); diff != "" {
		t.Errorf("unexpected event (-want +got):\n%s", diff)
	}
}

// at returns a pod in the form in which a watch delivers it with the revision of another one.
func at(pod, revision *example.Pod) *example.Pod {
	pod = pod.DeepCopy()
	pod.ResourceVersion = revision.ResourceVersion
	return pod
}

func revisionOf(t testing.TB, pod *example.Pod) uint64 {
	t.Helper()
	revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func resumesWatch(t *testing.T, s *restartable) {
	first := s.create(t, "a", 0, nil)
	second := s.label(t, "a", labels.Set{"step": "2"})
	other := s.create(t, "b", 0, nil)
	gone := s.delete(t, "b")
	s.restart(t)

	w := s.watchFrom(t, first.ResourceVersion, "")
	expect(t, w, watch.Modified, second)
	expect(t, w, watch.Added, other)
	expect(t, w, watch.Deleted, gone)
	expect(t, w, watch.Added, s.create(t, "b", 0, nil))
}

func listsExactly(t *testing.T, s *restartable) {
	s.create(t, "a", 0, nil)
	s.create(t, "b", 0, nil)
	s.label(t, "a", labels.Set{"step": "2"})
	s.delete(t, "b")
	s.create(t, "c", 0, nil)
	want := map[string][]example.Pod{}
	for revision := uint64(2); revision <= s.core.Revision(); revision++ {
		resourceVersion := strconv.FormatUint(revision, 10)
		want[resourceVersion] = s.listAt(t, resourceVersion)
	}
	s.restart(t)
	for resourceVersion, pods := range want {
		if diff := cmp.Diff(pods, s.listAt(t, resourceVersion)); diff != "" {
			t.Errorf("list at %s has changed (-before +after):\n%s", resourceVersion, diff)
		}
	}
}

func keepsTombstones(t *testing.T, s *restartable) {
	created := s.create(t, "a", 0, nil)
	deleted := s.delete(t, "a")
	s.restart(t)
	if err := s.pods.Get(t.Context(), podKey("ns", "a"), storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
		t.Errorf("get: %v, want not found", err)
	}
	if pods := s.listAt(t, created.ResourceVersion); len(pods) != 1 || !cmp.Equal(pods[0], *created) {
		t.Errorf("before the deletion there were %v, want the pod", pods)
	}
	if pods := s.listAt(t, deleted.ResourceVersion); len(pods) != 0 {
		t.Errorf("after the deletion there were %v, want none", pods)
	}
}

func expiresAfterwards(t *testing.T, s *restartable) {
	pod := s.create(t, "a", 60, nil)
	s.clock.Step(40 * time.Second)
	s.restart(t)
	w := s.watchFrom(t, pod.ResourceVersion, "")
	other := s.create(t, "b", 0, nil)
	expect(t, w, watch.Added, other) // not deleted yet
	s.clock.Step(20 * time.Second)
	event := receive(t, w)
	if got := event.Object.(*example.Pod); event.Type != watch.Deleted || got.Name != "a" {
		t.Errorf("got %s of %s, want the deletion of a", event.Type, got.Name)
	}
}

func expiresMeanwhile(t *testing.T, s *restartable) {
	pod := s.create(t, "a", 60, nil)
	s.stop(t)
	s.clock.Step(time.Hour)
	s.start(t)
	event := receive(t, s.watchFrom(t, pod.ResourceVersion, ""))
	if got := event.Object.(*example.Pod); event.Type != watch.Deleted || got.Name != "a" {
		t.Errorf("got %s of %s, want the deletion of a", event.Type, got.Name)
	}
}

func staysCompacted(t *testing.T, s *restartable) {
	old := s.create(t, "a", 0, nil)
	s.label(t, "a", labels.Set{"step": "2"})
	s.passWindow(t)
	compacted := s.core.CompactedRevision()
	if compacted <= revisionOf(t, old) {
		t.Fatalf("revision %s is not compacted yet", old.ResourceVersion)
	}
	s.restart(t)
	if got := s.core.CompactedRevision(); got != compacted {
		t.Errorf("compacted revision %d, was %d", got, compacted)
	}
	event := receive(t, s.watchFrom(t, old.ResourceVersion, ""))
	if status, ok := event.Object.(*metav1.Status); !ok || status.Reason != metav1.StatusReasonExpired {
		t.Errorf("watch from a compacted revision: got %s %v, want an expired status", event.Type, event.Object)
	}
	s.watchFrom(t, strconv.FormatUint(compacted, 10), "")
	s.listAt(t, strconv.FormatUint(compacted, 10))
}

func neverReusesRevision(t *testing.T, s *restartable) {
	var revisions []uint64
	for i := range 5 {
		revisions = append(revisions, revisionOf(t, s.create(t, fmt.Sprint("pod-", i), 0, nil)))
		s.restart(t)
		revisions = append(revisions, revisionOf(t, s.delete(t, fmt.Sprint("pod-", i))))
		if got, want := s.core.Revision(), revisions[len(revisions)-1]; got != want {
			t.Errorf("revision %d, want %d", got, want)
		}
		s.restart(t)
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(revisions))); !slices.Equal(revisions, sorted) {
		t.Errorf("revisions %v do not rise", revisions)
	}
}

func neverReusesCompactedRevision(t *testing.T, s *restartable) {
	s.create(t, "a", 0, nil)
	last := revisionOf(t, s.delete(t, "a"))
	if err := s.core.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	if got := s.core.Revision(); got != last {
		t.Errorf("revision %d, want %d", got, last)
	}
	if got := revisionOf(t, s.create(t, "a", 0, nil)); got != last+1 {
		t.Errorf("next revision %d, want %d", got, last+1)
	}
}

// continuesAfterJump makes a journal jump to a higher revision, as a restore and a migration do.
func continuesAfterJump(t *testing.T, s *restartable) {
	const base = 1_000_000_000
	before := s.create(t, "a", 0, nil)
	s.stop(t)
	j, err := s.open(t, s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Replay(t.Context(), func(journal.Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Trim(base, nil), j.Close()); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	for range 2 {
		if revision, compacted := s.core.Revision(), s.core.CompactedRevision(); revision != base || compacted != base {
			t.Errorf("at revision %d, compacted %d, want %d", revision, compacted, base)
		}
		s.restart(t)
	}
	event := receive(t, s.watchFrom(t, before.ResourceVersion, ""))
	if status, ok := event.Object.(*metav1.Status); !ok || status.Reason != metav1.StatusReasonExpired {
		t.Errorf("watch from before the jump: got %s %v, want an expired status", event.Type, event.Object)
	}
	w := s.watchFrom(t, strconv.Itoa(base), "")
	changed := s.label(t, "a", labels.Set{"step": "2"})
	if got := revisionOf(t, changed); got != base+1 {
		t.Errorf("next revision %d, want %d", got, base+1)
	}
	expect(t, w, watch.Modified, changed)
	s.restart(t)
	if pods := s.listAt(t, changed.ResourceVersion); len(pods) != 1 || !cmp.Equal(pods[0], *changed) {
		t.Errorf("after another restart there are %v", pods)
	}
}

// keepsPrevious covers a case that fails in a journal which drops every record older than the window.
func keepsPrevious(t *testing.T, s *restartable) {
	a := s.create(t, "a", 0, labels.Set{"tier": "front"})
	b := s.create(t, "b", 0, labels.Set{"tier": "front"})
	s.passWindow(t)
	if s.core.CompactedRevision() < revisionOf(t, b) {
		t.Fatal("the pods should have left the window")
	}
	before := s.core.Revision()
	resourceVersion := strconv.FormatUint(before, 10)
	pods := s.listAt(t, resourceVersion)
	changedA := s.label(t, "a", labels.Set{"tier": "front", "step": "2"})
	changedB := s.label(t, "b", labels.Set{"tier": "back"})
	deletedA := s.delete(t, "a")
	s.restart(t)

	w := s.watchFrom(t, resourceVersion, "tier=front")
	expect(t, w, watch.Modified, changedA)
	expect(t, w, watch.Deleted, at(b, changedB))
	expect(t, w, watch.Deleted, at(changedA, deletedA))
	if diff := cmp.Diff(pods, s.listAt(t, resourceVersion)); diff != "" {
		t.Errorf("list at %s has changed (-before +after):\n%s", resourceVersion, diff)
	}
	if pods[0].ResourceVersion != a.ResourceVersion {
		t.Errorf("the list starts with %s at %s, want a at %s", pods[0].Name, pods[0].ResourceVersion, a.ResourceVersion)
	}
	if err := s.pods.Get(t.Context(), podKey("ns", "b"), storage.GetOptions{}, &example.Pod{}); err != nil {
		t.Error(errors.Join(errors.New("the changed pod is lost"), err))
	}
}
