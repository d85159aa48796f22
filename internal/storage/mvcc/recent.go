package mvcc

import (
	"hash/maphash"
	"sync/atomic"
)

// The number of slots of a recent: the number of entries of its tree, within these bounds.
const (
	fewestPlaces = 64
	mostPlaces   = 1 << 16
)

// recent finds versions of a tree by key without searching the tree. A search compares about a dozen other keys and
// waits for memory as often. recent has one slot for all keys with the same hash; the slot holds the version that was
// last written or found.
//
// Every version in it is in the tree. As with the tree, find and remember may be called concurrently, but not
// concurrently with set or remove. A nil recent is always empty.
type recent struct {
	seed   maphash.Seed
	places []atomic.Pointer[version] // the length is a power of two
}

func newRecent() *recent {
	return &recent{maphash.MakeSeed(), make([]atomic.Pointer[version], fewestPlaces)}
}

func (r *recent) place(key string) *atomic.Pointer[version] {
	return &r.places[maphash.String(r.seed, key)&uint64(len(r.places)-1)]
}

// find returns the version of a key; nil if the tree must be searched.
func (r *recent) find(key string) *version {
	if r == nil {
		return nil
	}
	if v := r.place(key).Load(); v != nil && v.key == key {
		return v
	}
	return nil
}

// remember records a version that was found in the tree.
func (r *recent) remember(v *version) {
	if r != nil {
		r.place(v.key).Store(v)
	}
}

// set records a version that was put into the tree, which now has that many entries.
func (r *recent) set(v *version, entries int) {
	if r == nil {
		return
	}
	if entries > len(r.places) && len(r.places) < mostPlaces {
		r.places = make([]atomic.Pointer[version], 2*len(r.places)) // later searches fill it again
	}
	r.remember(v)
}

// remove removes the version of a key that was removed from the tree.
func (r *recent) remove(key string) {
	if r.find(key) != nil {
		r.place(key).Store(nil)
	}
}
