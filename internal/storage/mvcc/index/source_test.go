package index_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

// podVersion is a version of a pod; a tombstone has no pod.
type podVersion struct {
	key      string
	revision uint64
	pod      *example.Pod
}

func (v *podVersion) Key() string      { return v.key }
func (v *podVersion) Revision() uint64 { return v.revision }
func (v *podVersion) Deleted() bool    { return v.pod == nil }

// fakeSource is a source of pods that tests change directly.
type fakeSource struct {
	mu         sync.Mutex
	revision   uint64
	compacted  uint64
	events     []*podVersion
	latest     map[string]*podVersion
	unreadable map[string]bool // by key
	reads      int
	// onRead is called by each Object, without mu; may be nil.
	onRead func()
}

var _ index.Source[*podVersion] = (*fakeSource)(nil)

func (s *fakeSource) Changes(after uint64) index.Changes[*podVersion] {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearchFunc(s.events, after+1, func(v *podVersion, revision uint64) int { return cmp.Compare(v.revision, revision) })
	return index.Changes[*podVersion]{
		Events:   s.events[first:len(s.events):len(s.events)],
		Through:  s.revision,
		Complete: s.compacted <= after,
	}
}

func (s *fakeSource) Snapshot() (iter.Seq[*podVersion], uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []*podVersion
	for _, v := range s.latest {
		if v.pod != nil {
			pods = append(pods, v)
		}
	}
	slices.SortFunc(pods, func(a, b *podVersion) int { return cmp.Compare(a.key, b.key) })
	return slices.Values(pods), s.revision
}

func (s *fakeSource) Latest(key string) (*podVersion, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, exists := s.latest[key]
	return v, exists
}

var errUnreadable = errors.New("unreadable")

func (s *fakeSource) Object(_ context.Context, v *podVersion) (runtime.Object, error) {
	s.mu.Lock()
	s.reads++
	onRead, unreadable := s.onRead, s.unreadable[v.key]
	s.mu.Unlock()
	if onRead != nil {
		onRead()
	}
	if unreadable {
		return nil, errUnreadable
	}
	return v.pod, nil
}

func (s *fakeSource) HasObjects(n int64, prefix string) bool {
	objects, _ := s.Snapshot()
	found := int64(0)
	for v := range objects {
		if strings.HasPrefix(v.key, prefix) {
			found++
		}
	}
	return found >= n
}

// put writes a pod. Each of the texts is a label and its value, for example "color=red".
func (s *fakeSource) put(name string, texts ...string) {
	set := map[string]string{}
	for _, text := range texts {
		label, value, _ := strings.Cut(text, "=")
		set[label] = value
	}
	namespace, short, _ := strings.Cut(name, "/")
	s.write(name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, Labels: set}})
}

func (s *fakeSource) remove(name string) { s.write(name, nil) }

func (s *fakeSource) write(name string, pod *example.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	v := &podVersion{key: "/pods/" + name, revision: s.revision, pod: pod}
	s.latest[v.key] = v
	s.events = append(s.events, v)
}

// trim compacts the history up to the current revision.
func (s *fakeSource) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted, s.events = s.revision, nil
}

func (s *fakeSource) setUnreadable(name string, unreadable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreadable["/pods/"+name] = unreadable
}

func (s *fakeSource) setOnRead(onRead func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRead = onRead
}

// env is a resource with a declared index of the label color, above a fake source.
type env struct {
	t           *testing.T
	source      *fakeSource
	clock       *clocktesting.FakeClock
	maintenance *index.Maintenance[*podVersion]
	indexes     *index.Indexes[*podVersion]
}

type options struct {
	slowObjects  bool
	labelEntries int64 // default 1000
}

func newEnv(t *testing.T, o options) *env {
	e := &env{t: t, source: &fakeSource{latest: map[string]*podVersion{}, unreadable: map[string]bool{}}}
	e.clock = clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	e.maintenance = index.NewMaintenance[*podVersion](cmp.Or(o.labelEntries, 1000))
	e.indexes = index.New(index.Config[*podVersion]{
		Source: e.source,
		NameOf: func(key string) (namespace, name string) {
			namespace, name, _ = strings.Cut(strings.TrimPrefix(key, "/pods/"), "/")
			return namespace, name
		},
		SlowObjects:  o.slowObjects,
		LabelObjects: 1,
		Maintenance:  e.maintenance,
		Clock:        e.clock,
		Indexers: cache.Indexers{storage.LabelIndex("color"): func(object any) ([]string, error) {
			pod := object.(*example.Pod)
			if color, exists := pod.Labels["color"]; exists {
				return []string{color}, nil
			}
			return nil, nil
		}},
	})
	return e
}

// putColors writes pods of five colors.
func (e *env) putColors(pods int) {
	for i := range pods {
		e.source.put(fmt.Sprintf("ns/pod-%02d", i), fmt.Sprint("color=", i%5))
	}
}

// predicate returns the predicate of a label selector.
func (e *env) predicate(selector string) storage.SelectionPredicate {
	e.t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		e.t.Fatal(err)
	}
	return storage.SelectionPredicate{Label: parsed, Field: fields.Everything()}
}

// plan returns the best result for a selector; nil if there is none.
func (e *env) plan(selector string) *index.Result[*podVersion] {
	e.t.Helper()
	plan, err := e.indexes.Plan(e.t.Context(), "/pods/", e.predicate(selector))
	if err != nil {
		e.t.Fatal(err)
	}
	best, _ := plan.Best(1 << 30)
	return best
}

// scan is the result of find if no index can be used.
const scan = "scan"

// find returns the names of the pods that an index finds, and then those that it could not read.
func (e *env) find(selector string) string {
	e.t.Helper()
	best := e.plan(selector)
	if best == nil {
		return scan
	}
	var names []string
	for key := range best.Keys("/pods/", "/pods/", nil) {
		names = append(names, strings.TrimPrefix(key, "/pods/ns/"))
	}
	for _, key := range best.Unreadable() {
		names = append(names, "unreadable "+strings.TrimPrefix(key, "/pods/ns/"))
	}
	return strings.Join(names, " ")
}

// want checks the pods that an index finds, and the number of pods that it reads for that.
func (e *env) want(step, selector, found string, reads int) {
	e.t.Helper()
	e.resetReads()
	if got := e.find(selector); got != found {
		e.t.Errorf("%s: %s finds %q, want %q", step, selector, got, found)
	}
	e.wantReads(step, reads)
}

func (e *env) resetReads() {
	e.source.mu.Lock()
	defer e.source.mu.Unlock()
	e.source.reads = 0
}

func (e *env) wantReads(step string, reads int) {
	e.t.Helper()
	e.source.mu.Lock()
	defer e.source.mu.Unlock()
	if e.source.reads != reads {
		e.t.Errorf("%s: %d pods are read, want %d", step, e.source.reads, reads)
	}
}
