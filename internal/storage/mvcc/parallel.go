package mvcc

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/parallel"
)

// decodeBatch is the number of objects that are decoded at once, while their encoded size is below decodeBytes.
const (
	decodeBatch = 1024
	decodeBytes = 8 << 20
)

// read is the result of reading one version.
type read struct {
	object runtime.Object // shared
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
	parallel.Do(len(undecoded), func(i int) {
		i = undecoded[i]
		found[i].object, found[i].err = s.objectFor(ctx, versions[i], keep)
	})
	return found
}
