package parallel_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/annexapi/annex/internal/base/parallel"
)

func TestDo_anyNumber_callsEachOnce(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 1000} {
		calls := make([]atomic.Int64, n)
		parallel.Do(n, func(i int) { calls[i].Add(1) })
		for i := range calls {
			if got := calls[i].Load(); got != 1 {
				t.Errorf("Do(%d) calls with %d %d times", n, i, got)
			}
		}
	}
}

func TestBatches_anyLength_yieldsAll(t *testing.T) {
	for _, test := range []struct {
		items []int
		want  [][]int
	}{
		{nil, nil},
		{[]int{1, 2}, [][]int{{1, 2}}},
		{[]int{1, 2, 3}, [][]int{{1, 2, 3}}},
		{[]int{1, 2, 3, 4}, [][]int{{1, 2, 3}, {4}}},
	} {
		var got [][]int
		for batch := range parallel.Batches(slices.Values(test.items), 3) {
			got = append(got, slices.Clone(batch))
		}
		if !slices.EqualFunc(got, test.want, slices.Equal) {
			t.Errorf("batches of %v: %v, want %v", test.items, got, test.want)
		}
	}
}

func TestBatches_stopped_readsNoMore(t *testing.T) {
	read := 0
	items := func(yield func(int) bool) {
		for i := 0; yield(i); i++ {
			read++
		}
	}
	for batch := range parallel.Batches(items, 3) {
		if batch[0] == 3 {
			break
		}
	}
	if read != 5 { // the sixth item fills the batch that ends the loop
		t.Errorf("%d items were read before the loop ended, want 5", read)
	}
}
