package mvcc

import (
	"testing"
	"unsafe"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// At rest, objects that were written and not read since are dropped; objects that were read stay.
func TestObjectCache_rest_dropsWritten(t *testing.T) {
	const count, size = 4000, 1000
	s := &resourceStore{resource: store.Resource{}}
	c := &objectCache{budget: count * 3 * size}
	var versions []*version
	attach := func(written bool) *version {
		v := newVersion(journal.Record{Revision: uint64(len(versions) + 2), Value: make([]byte, size)}, nil)
		versions = append(versions, v)
		c.attach(v, &decoded{store: s, written: written})
		return v
	}
	for i := range count {
		v := attach(i%10 != 0)
		if i%7 == 0 && i%10 != 0 {
			s.cached(v)
		}
	}
	if c.rest(); c.total != c.budget {
		t.Fatalf("%d of %d are kept while much is written", c.total, c.budget)
	}
	c.rest()
	var kept int64
	for i, v := range versions {
		d := v.decoded.Load()
		if d != nil {
			kept += d.estimate(v)
		}
		if read := i%10 == 0 || i%7 == 0; read != (d != nil) {
			t.Fatalf("object %d, which was read: %t, is kept: %t", i, read, d != nil)
		}
	}
	if kept != c.total || kept == 0 || c.stale != 0 {
		t.Errorf("%d of %d are kept, %d counted, %d stale", kept, c.budget, c.total, c.stale)
	}
	for range 3 {
		if c.rest(); c.total != kept {
			t.Errorf("%d are kept when nothing else was written", c.total)
		}
	}
	for range count {
		attach(true)
	}
	if c.total != c.budget || len(c.queue) > 2*count {
		t.Errorf("%d of %d are kept in the end, %d in the queue", c.total, c.budget, len(c.queue))
	}
}

// There is one version for each object and event. A version that is larger than a size class of Go's allocator costs
// the next size class.
func TestVersion_allocationSize(t *testing.T) {
	const allocated = 96
	if size := unsafe.Sizeof(version{}); size > allocated {
		t.Errorf("a version takes %d bytes of %d", size, allocated)
	}
}
