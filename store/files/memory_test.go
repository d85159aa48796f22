package files_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// TestTrimGivesMemoryBack appends many records between two trims: what is left must
// not depend on how many they were.
func TestTrimGivesMemoryBack(t *testing.T) {
	j, err := files.Open("root", files.Options{FS: newMemory(vfs.NewMem())})
	if err != nil {
		t.Fatal(err)
	}
	const keys = 400
	revision := uint64(1)
	write := func(rounds int) {
		var drop []uint64
		for range rounds {
			var wait func() error
			for key := range keys {
				revision++
				r := journal.Record{Revision: revision, Key: fmt.Sprintf("/pods/ns/pod-%d", key), Value: bytes.Repeat([]byte("x"), 100)}
				if revision > keys+1 {
					r.Previous = revision - keys
					drop = append(drop, r.Previous)
				}
				if wait, err = j.Append(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := wait(); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Trim(drop[len(drop)-1], drop); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	write(4)
	before := heap()
	write(50)
	// The map of all records at once takes 4 MB.
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap has grown from %d to %d bytes", before, after)
	}
	closeChecked(t, j)
}
