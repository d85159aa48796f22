package embedded_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/storetest"
)

// TestDiskUsage_steadyUpdates_isBounded updates the same objects again and again with a short history, and expects
// that files stop growing. ANNEX_UPDATES makes it long, on a disk and with the sizes of a server.
func TestDiskUsage_steadyUpdates_isBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes until compactions have run")
	}
	keys, updates, history := 1_000, 30_000, int64(1_000)
	options := embedded.Options{FS: vfs.NewMem(), MemTableSize: 1 << 20}
	if text := os.Getenv("ANNEX_UPDATES"); text != "" {
		var err error
		if updates, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		keys, history, options = 10_000, 10_000, embedded.Options{}
	}
	j := mustOpen(t, t.TempDir(), options)
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{History: mvcc.History{MinAge: -1, MinRevisions: history}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = core.Close() }()
	pods, err := core.Open(storetest.Pods("/pods"))
	if err != nil {
		t.Fatal(err)
	}
	key := func(i int) string { return fmt.Sprintf("/pods/ns/pod-%05d", i) }
	inParallel(16, keys, func(i int) {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod-%05d", i)}}
		if err := pods.Create(t.Context(), key(i), pod, nil, 0); err != nil {
			t.Error(err)
		}
	})

	const parts = 6
	var peaks [parts]uint64
	for part := range parts {
		var peak atomic.Uint64
		inParallel(16, updates/parts, func(i int) {
			// Text that does not compress.
			var note strings.Builder
			for range 100 {
				fmt.Fprintf(&note, "%08x", rand.Uint32())
			}
			err := pods.GuaranteedUpdate(
				t.Context(),
				key(i*7919%keys),
				&example.Pod{},
				false,
				nil,
				storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
					object.(*example.Pod).Annotations = map[string]string{"note": note.String()}
					return object, nil
				}),
				nil,
			)
			if err != nil {
				t.Error(err)
			}
			if i%500 == 0 {
				if err := core.CompactHistory(t.Context()); err != nil {
					t.Error(err)
				}
				for used := j.DiskUsage(); ; {
					if before := peak.Load(); before >= used || peak.CompareAndSwap(before, used) {
						break
					}
				}
			}
		})
		peaks[part] = peak.Load()
	}
	needed := uint64(keys+int(history)) * 1_000
	t.Logf("%d updates of %d objects, %d kB needed; most kB on disk in each part: %v", updates, keys, needed>>10, inKB(peaks[:]))
	if settled, last := max(peaks[1], peaks[2]), max(peaks[4], peaks[5]); last > settled+settled/2 {
		t.Errorf("the files go on growing: %v kB", inKB(peaks[:]))
	}
	// The log's files are reused; there may be one more of them than memory tables.
	if most := 6*needed + 6*uint64(max(options.MemTableSize, 1<<20)); options.MemTableSize > 0 && peaks[parts-1] > most {
		t.Errorf("%d kB are on disk, want at most %d", peaks[parts-1]>>10, most>>10)
	}
	if got := core.Stats().Events; got > int(history)+2_000 {
		t.Errorf("%d events are left", got)
	}
}

func inKB(bytes []uint64) []uint64 {
	var kilobytes []uint64
	for _, b := range bytes {
		kilobytes = append(kilobytes, b>>10)
	}
	return kilobytes
}

// inParallel calls do for all numbers below n from a number of goroutines.
func inParallel(goroutines, n int, do func(i int)) {
	var next atomic.Int64
	var running sync.WaitGroup
	for range goroutines {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	running.Wait()
}
