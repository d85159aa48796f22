// Package parallel divides work into batches, and the work of a batch between the processors.
//
// It has no errors and no contexts: the functions of callers record errors and check contexts themselves.
package parallel

import (
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
)

// claim is the number of calls that a goroutine claims at a time. Claiming is cheap compared with decoding an object;
// the number is chosen so that starting a goroutine pays off.
const claim = 16

// Do calls do for all numbers below n, on all processors, and returns when all calls have returned. do must not panic.
func Do(n int, do func(i int)) {
	var next atomic.Int64
	work := func() {
		for {
			end := int(next.Add(claim))
			for i := end - claim; i < min(end, n); i++ {
				do(i)
			}
			if end >= n {
				return
			}
		}
	}
	var working sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (n+claim-1)/claim) - 1 {
		working.Go(work)
	}
	work()
	working.Wait()
}

// Batches yields a sequence in slices of the given size; the last one may be shorter. Each slice is valid only until
// the next one.
func Batches[T any](all iter.Seq[T], size int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		batch := make([]T, 0, size)
		for item := range all {
			if batch = append(batch, item); len(batch) == size {
				if !yield(batch) {
					return
				}
				batch = batch[:0]
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}
