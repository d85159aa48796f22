package mvcc

import (
	"math/rand/v2"
	"testing"

	"github.com/annexapi/annex/store/journal"
)

// TestLatestValues_accounting makes random changes and compares the counts with a recount.
func TestLatestValues_accounting(t *testing.T) {
	const keys, budget, large = 50, 20_000, 700
	values := newLatestValues(Options{ValueBytes: budget, LargeValue: large})
	l := &values
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

		var bytes, ofLarge int64
		for _, v := range latest {
			switch size := int64(v.size); {
			case v.value.Load() == nil:
			case size >= large:
				ofLarge += size
			default:
				bytes += size
			}
		}
		if bytes != l.small.bytes || ofLarge != l.large.bytes || bytes+ofLarge > budget || ofLarge > budget/largeValuesPart {
			t.Fatalf(
				"after %d changes %d bytes are kept, and %d of large values; %d and %d counted, the budget is %d",
				revision+1,
				bytes,
				ofLarge,
				l.small.bytes,
				l.large.bytes,
				budget,
			)
		}
		if n := len(l.small.queue) + len(l.large.queue); n > 2*2*(keys+1024)+1 {
			t.Fatalf("after %d changes the queues have %d versions", revision+1, n)
		}
	}
}
