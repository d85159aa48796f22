package mvcc

import (
	"context"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	kruntime "k8s.io/apimachinery/pkg/runtime"
)

// decodeBatch is the number of objects that are decoded at once, while their encoded size is below decodeBytes.
const (
	decodeBatch = 1024
	decodeBytes = 8 << 20
)

// decodePiece is the number of objects that a goroutine claims at a time. Claiming is cheap compared with decoding; the
// number is chosen so that starting a goroutine pays off.
const decodePiece = 16

// read is the result of reading one version.
type read struct {
	object kruntime.Object // shared
	err    error
}

// read returns the objects of versions. It decodes objects on all processors.
func (s *resourceStore) read(ctx context.Context, versions []*version) []read {
	return s.readFor(ctx, versions, s.core.decoded.attach)
}

// readFor is like read, but caches decoded objects by keep, as objectFor does.
func (s *resourceStore) readFor(ctx context.Context, versions []*version, keep func(*version, *decoded)) []read {
	found := make([]read, len(versions))
	var undecoded []int
	for i, v := range versions {
		if found[i].object = s.cached(v); found[i].object == nil {
			undecoded = append(undecoded, i)
		}
	}
	inParallel(len(undecoded), func(i int) {
		i = undecoded[i]
		found[i].object, found[i].err = s.objectFor(ctx, versions[i], keep)
	})
	return found
}

// inParallel calls do for all numbers below n and returns when all calls have returned. do must not panic.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	work := func() {
		for {
			end := int(next.Add(decodePiece))
			for i := end - decodePiece; i < min(end, n); i++ {
				do(i)
			}
			if end >= n {
				return
			}
		}
	}
	var working sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (n+decodePiece-1)/decodePiece) - 1 {
		working.Go(work)
	}
	work()
	working.Wait()
}

// inBatches yields a sequence in slices. Each slice is valid only until the next one.
func inBatches[T any](all iter.Seq[T], size int) iter.Seq[[]T] {
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
