package mvcc

import (
	"context"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	kruntime "k8s.io/apimachinery/pkg/runtime"
)

// decodeBatch is how many objects are decoded at once, as long as their encoded size is
// below decodeBytes.
const (
	decodeBatch = 1024
	decodeBytes = 8 << 20
)

// decodePiece is how many of them one goroutine takes at a time: decoding one takes
// much longer than taking it, but a goroutine should be worth starting.
const decodePiece = 16

// read is what came of reading one version.
type read struct {
	object kruntime.Object // shared
	err    error
}

// read returns the objects of versions, decoding those that are not yet decoded on
// all processors.
func (s *resourceStore) read(ctx context.Context, versions []*version) []read {
	return s.readFor(ctx, versions, s.core.decoded.attach)
}

// readFor is read with another way to keep decoded objects, as objectFor has it.
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

// inParallel calls do for all numbers below n and returns when all calls have. The
// calls must not panic.
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

// inBatches yields a sequence in slices, which are only valid until the next.
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
