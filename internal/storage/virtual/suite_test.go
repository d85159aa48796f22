package virtual

import (
	"context"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/storetest"
)

// podSystem is another system with pods.
type podSystem struct {
	mu      sync.Mutex
	version int
	pods    map[string]*example.Pod
	changed func(namespace, name string)
	// unversioned pods have no version of the system.
	unversioned bool
	// stamps adds to every pod the version at which it was written.
	stamps bool
	lists  int // number of lists
	slow   func()
}

func newPodSystem() *podSystem { return &podSystem{pods: map[string]*example.Pod{}} }

func (s *podSystem) get(_ context.Context, namespace, name string) (runtime.Object, error) {
	s.mu.Lock()
	pod, ok := s.pods[namespace+"/"+name]
	s.mu.Unlock()
	if s.slow != nil {
		s.slow()
	}
	if !ok {
		return nil, define.ErrNotFound
	}
	return pod.DeepCopy(), nil
}

func (s *podSystem) list(context.Context) ([]runtime.Object, error) {
	s.mu.Lock()
	s.lists++
	all := make([]runtime.Object, 0, len(s.pods))
	for _, pod := range s.pods {
		all = append(all, pod)
	}
	s.mu.Unlock()
	if s.slow != nil {
		s.slow()
	}
	return all, nil
}

func (s *podSystem) create(_ context.Context, obj runtime.Object) error {
	pod := obj.(*example.Pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[pod.Namespace+"/"+pod.Name] != nil {
		return define.ErrAlreadyExists
	}
	s.put(pod)
	return nil
}

func (s *podSystem) update(_ context.Context, obj, old runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.compare(old.(*example.Pod)); err != nil {
		return err
	}
	s.put(obj.(*example.Pod))
	return nil
}

func (s *podSystem) delete(_ context.Context, obj runtime.Object) error {
	old := obj.(*example.Pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.compare(old); err != nil {
		return err
	}
	delete(s.pods, old.Namespace+"/"+old.Name)
	s.notify(old.Namespace, old.Name)
	return nil
}

// The functions below need mu.

func (s *podSystem) compare(old *example.Pod) error {
	switch now := s.pods[old.Namespace+"/"+old.Name]; {
	case now == nil:
		return define.ErrNotFound
	case now.ResourceVersion != old.ResourceVersion:
		return define.ErrConflict
	}
	return nil
}

func (s *podSystem) put(pod *example.Pod) {
	s.version++
	kept := pod.DeepCopy()
	if s.stamps {
		kept.Annotations = map[string]string{"at": strconv.Itoa(s.version)}
	}
	kept.ResourceVersion = ""
	if !s.unversioned {
		kept.ResourceVersion = strconv.Itoa(s.version)
	}
	s.pods[pod.Namespace+"/"+pod.Name] = kept
	s.notify(pod.Namespace, pod.Name)
}

func (s *podSystem) notify(namespace, name string) {
	if s.changed != nil {
		s.changed(namespace, name)
	}
}

func (s *podSystem) changes(ctx context.Context, changed func(namespace, name string)) error {
	s.mu.Lock()
	s.changed = changed
	s.mu.Unlock()
	changed("", "")
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = nil
	return nil
}

func (s *podSystem) source() *define.Source {
	return &define.Source{
		Get: s.get, List: s.list, Create: s.create, Update: s.update, Delete: s.delete,
		KeepsMetadata: true,
		Changes:       s.changes,
	}
}

func podKind(source *define.Source) *define.Kind {
	return &define.Kind{Name: "Pod", Resource: "pods", Source: source}
}

// openPods returns the mirror of a system.
func openPods(t testing.TB, source *define.Source) *Mirror {
	t.Helper()
	return openResource(t, source, storetest.Pods("/pods"))
}

func openResource(t testing.TB, source *define.Source, resource store.Resource) *Mirror {
	t.Helper()
	m, err := Open(t.Context(), podKind(source), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.openResource(resource); err != nil {
		t.Fatal(err)
	}
	return m
}

// backend runs the storage suite on a mirror. The first resource that it opens is virtual; any other only raises the
// revision.
type backend struct {
	*mvcc.Core
	mirror *Mirror
}

func (b backend) Open(resource store.Resource) (storage.Interface, error) {
	if b.mirror.Interface != nil {
		return b.Core.Open(resource)
	}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "namespace", Name: "name"}}
	key, err := resource.KeyFunc(pod)
	if err != nil {
		return nil, err
	}
	b.mirror.kind.ClusterScoped = key == resource.Prefix+"/name"
	return b.mirror, b.mirror.openResource(resource)
}

func (b backend) Close() error { return b.mirror.Close() }

func openBackend(t testing.TB, needs storetest.Needs) storetest.Backend {
	options := mvcc.Options{BookmarkInterval: needs.BookmarkInterval}
	if needs.NothingDecoded {
		options.ObjectCacheBytes = -1
	}
	m, err := openAfter(t.Context(), podKind(newPodSystem().source()), options, 0) // the suite starts at revision 1
	if err != nil {
		t.Fatal(err)
	}
	return backend{m.core, m}
}

// Parts of the suite that no client can cause: objects under keys that do not consist of their names, resources that
// have been used before, and broken encodings.
const (
	otherKeys = "its objects are not at the keys of their names"
	otherUID  = "its objects have no UID"
	noExpiry  = "objects of a source do not expire"
	noCorrupt = "what a source returns is not stored, and cannot be corrupt"
)

func TestStorageSuite(t *testing.T) {
	storetest.RunStorageWith(t, "virtual", openBackend, storetest.Traits{NotConditional: true, OneView: true, NotRun: map[string]string{
		"RunTestCreateWithTTL":                        noExpiry,
		"RunTestGuaranteedUpdateWithTTL":              noExpiry,
		"RunTestDeleteExpectedTransformOrDecodeError": noCorrupt,
		"RunTestWatchWithUnsafeDelete":                noCorrupt,
		"RunTestGuaranteedUpdateChecksStoredData":     noCorrupt,
		"RunTestListContinuation":                     otherKeys,
		"RunTestListContinuationWithFilter":           otherKeys,
		"RunTestListInconsistentContinuation":         otherKeys,
		"RunTestListPaginationRareObject":             otherKeys,
		"RunTestListResourceVersionMatch":             otherKeys,
		"RunTestGuaranteedUpdateWithConflict":         otherKeys,
		"RunTestGuaranteedUpdate":                     otherKeys,
		"RunTestKeySchema":                            otherKeys,
		"RunTestStats":                                otherKeys,
		"RunTestNamespaceScopedList":                  otherUID,
		"RunTestCompactRevision":                      "what was before a mirror was filled is compacted",
	}})
}
