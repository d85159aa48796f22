package mvcc

import (
	"math/rand/v2"
	"testing"

	"github.com/annexapi/annex/store/journal"
)

// TestLatestValuesCountWhatTheyKeep makes random changes and counts anew.
func TestLatestValuesCountWhatTheyKeep(t *testing.T) {
	const keys, budget = 50, 20_000
	l := &latestValues{budget: budget}
	latest := map[int]*version{}
	for revision := range 100_000 {
		k := rand.IntN(keys)
		replaced := latest[k]
		record := journal.Record{Revision: uint64(revision + 2), Previous: replaced.live(), Deleted: replaced.live() != 0 && rand.IntN(4) == 0}
		if !record.Deleted {
			record.Value = make([]byte, rand.IntN(1000))
		}
		latest[k] = newVersion(record, replaced)
		l.add(latest[k], replaced)
		latest[k].previous.Store(nil)

		var bytes int64
		for _, v := range latest {
			if v.value.Load() != nil {
				bytes += int64(v.size)
			}
		}
		if bytes != l.bytes || bytes > budget {
			t.Fatalf("after %d changes %d bytes are kept, %d counted, the budget is %d", revision+1, bytes, l.bytes, budget)
		}
		if len(l.queue) > 2*(keys+1024)+1 {
			t.Fatalf("after %d changes the queue has %d versions", revision+1, len(l.queue))
		}
	}
}
