package mvcc

import (
	"iter"
	"sort"

	"github.com/tidwall/btree"
)

// tree holds one version for each key, ordered by key. A copy costs nothing and is independent of its original; only
// writing to the tree requires a lock.
type tree struct {
	entries    *btree.BTreeG[entry]
	tombstones *btree.BTreeG[entry] // the entries that are tombstones
	recent     *recent              // nil in a copy
}

// entry repeats the key because otherwise a search would read the memory of every version that it compares.
type entry struct {
	key     string
	version *version
}

func newTree() *tree {
	byKey := func(a, b entry) bool { return a.key < b.key }
	return &tree{
		entries:    btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true}),
		tombstones: btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true}),
		recent:     newRecent(),
	}
}

func (t *tree) copy() *tree {
	return &tree{entries: t.entries.Copy(), tombstones: t.tombstones.Copy()}
}

// get returns the version of a key, or nil.
func (t *tree) get(key string) *version {
	if v := t.recent.find(key); v != nil {
		return v
	}
	e, found := t.entries.Get(entry{key: key})
	if found {
		t.recent.remember(e.version)
	}
	return e.version
}

// set stores a version and returns the version that it replaces, or nil.
func (t *tree) set(v *version) *version {
	e := entry{v.key, v}
	replaced, _ := t.entries.Set(e)
	t.recent.set(v, t.entries.Len())
	switch {
	case v.deleted:
		t.tombstones.Set(e)
	case replaced.version != nil && replaced.version.deleted:
		t.tombstones.Delete(e)
	}
	return replaced.version
}

func (t *tree) remove(key string) {
	t.recent.remove(key)
	t.entries.Delete(entry{key: key})
	t.tombstones.Delete(entry{key: key})
}

// objects returns the number of objects with keys in [from, below). It reads only a few entries.
func (t *tree) objects(from, below string) int {
	return rank(t.entries, below) - rank(t.entries, from) - rank(t.tombstones, below) + rank(t.tombstones, from)
}

// atLeast reports whether there are at least that many objects with keys in [from, below). It reads fewer entries than
// counting the objects does.
func (t *tree) atLeast(objects int, from, below string) bool {
	first := rank(t.entries, from)
	if e, found := t.entries.GetAt(first + t.tombstones.Len() + max(objects, 1) - 1); found && e.key < below {
		return true
	}
	return t.objects(from, below) >= objects
}

// rank returns the number of entries below a key.
func rank(entries *btree.BTreeG[entry], key string) int {
	return sort.Search(entries.Len(), func(i int) bool {
		e, _ := entries.GetAt(i)
		return e.key >= key
	})
}

// between yields the versions with keys in [from, below). It does not read the keys in between, which are scattered
// over memory.
func (t *tree) between(from, below string) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		if from >= below {
			return
		}
		var end *version
		t.entries.Ascend(entry{key: below}, func(e entry) bool {
			end = e.version
			return false
		})
		t.entries.Ascend(entry{key: from}, func(e entry) bool { return e.version != end && yield(e.version) })
	}
}

// from yields the versions with keys at or above key.
func (t *tree) from(key string) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		t.entries.Ascend(entry{key: key}, func(e entry) bool { return yield(e.version) })
	}
}
