package mvcc

import (
	"hash/maphash"
	"sync/atomic"
)

// Places of a recent: as many as there are entries, within these bounds.
const (
	fewestPlaces = 64
	mostPlaces   = 1 << 16
)

// recent finds versions of a tree by their keys without a search of it, which compares with a dozen of other keys, and so waits
// for the memory as often. It has one place for all keys of a hash, where the version is that was last written or found.
//
// All that is in it is in the tree. As with that, find and remember may be called concurrently, but not while set or remove is. A
// nil recent knows nothing.
type recent struct {
	seed   maphash.Seed
	places []atomic.Pointer[version] // a power of two of them
}

func newRecent() *recent {
	return &recent{maphash.MakeSeed(), make([]atomic.Pointer[version], fewestPlaces)}
}

func (r *recent) place(key string) *atomic.Pointer[version] {
	return &r.places[maphash.String(r.seed, key)&uint64(len(r.places)-1)]
}

// find returns the version of a key; nil if the tree has to be searched.
func (r *recent) find(key string) *version {
	if r == nil {
		return nil
	}
	if v := r.place(key).Load(); v != nil && v.key == key {
		return v
	}
	return nil
}

// remember is told what is found in the tree.
func (r *recent) remember(v *version) {
	if r != nil {
		r.place(v.key).Store(v)
	}
}

// set is told what is put into the tree, which has so many entries then.
func (r *recent) set(v *version, entries int) {
	if r == nil {
		return
	}
	if entries > len(r.places) && len(r.places) < mostPlaces {
		r.places = make([]atomic.Pointer[version], 2*len(r.places)) // what was there is found again
	}
	r.remember(v)
}

// remove is told what is taken out of the tree.
func (r *recent) remove(key string) {
	if r.find(key) != nil {
		r.place(key).Store(nil)
	}
}
