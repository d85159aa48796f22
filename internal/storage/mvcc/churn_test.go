package mvcc_test

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/memory"
)

// churn creates, updates and deletes objects of 2 KB, so that none remains.
func churn(t testing.TB, pods storage.Interface, objects int) {
	t.Helper()
	for i := range objects {
		name := fmt.Sprintf("churn-%d", i)
		pod := samplePod(name)
		pod.Annotations["padding"] = strings.Repeat("x", 2000)
		if err := pods.Create(t.Context(), key(name), pod, &example.Pod{}, 0); err != nil {
			t.Fatal(err)
		}
		annotate(t, pods, name, "changed")
		remove(t, pods, name)
	}
}

func TestObjectCache_deletedObjects_areDetached(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{Clock: newClock()})
	create(t, pods, "alive")
	alive := core.Stats().DecodedBytes
	churn(t, pods, 2_000)
	if got := core.Stats().DecodedBytes; got != alive {
		t.Errorf("%d bytes of decoded objects are counted, %d are of objects that exist", got, alive)
	}
}

// The versions of deleted objects stay only as long as the history, whatever the budget of the cache is.
func TestChurn_memory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory for seconds")
	}
	core, pods := open(t, memory.New(), mvcc.Options{Clock: newClock(), History: mvcc.History{MinAge: -1, MinRevisions: -1}})
	heap := func() uint64 {
		if err := core.CompactHistory(t.Context()); err != nil {
			t.Fatal(err)
		}
		goruntime.GC()
		goruntime.GC() // pools release memory only at the second collection
		var stats goruntime.MemStats
		goruntime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	churn(t, pods, 2_000)
	before := heap()
	churn(t, pods, 10_000)
	// The decoded objects would take about 60 MB, the versions alone 5 MB.
	if after := heap(); after > before+2<<20 {
		t.Errorf("the heap has grown from %d to %d bytes", before, after)
	}
}

// Watches with a selector read the previous object, which is no longer attached to a version.
func TestWatch_previousObject_isShared(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	w := watchFrom(t, pods, 1, selecting(t, "app=web"))
	create(t, pods, "a")
	annotate(t, pods, "a", "changed")
	remove(t, pods, "a")
	expect(t, w, "ADDED a@2", "MODIFIED a@3", "DELETED a@4")
	late := watchFrom(t, pods, 1, selecting(t, "app=web"))
	expect(t, late, "ADDED a@2", "MODIFIED a@3", "DELETED a@4")
}
