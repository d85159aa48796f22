package mvcc

import (
	"iter"

	"github.com/tidwall/btree"
)

// tree holds a version for each key, in the order of the keys. A copy costs
// nothing and is independent; only writing to the tree needs a lock.
type tree struct{ entries *btree.BTreeG[entry] }

// entry repeats the key because a search would otherwise touch every version
// that it compares with.
type entry struct {
	key     string
	version *version
}

func newTree() *tree {
	byKey := func(a, b entry) bool { return a.key < b.key }
	return &tree{btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true})}
}

func (t *tree) copy() *tree { return &tree{t.entries.Copy()} }

// get returns the version of a key, or nil.
func (t *tree) get(key string) *version {
	e, _ := t.entries.Get(entry{key: key})
	return e.version
}

// set puts a version in and returns the one that it replaces, or nil.
func (t *tree) set(v *version) *version {
	replaced, _ := t.entries.Set(entry{v.key, v})
	return replaced.version
}

func (t *tree) remove(key string) { t.entries.Delete(entry{key: key}) }

// from yields the versions from a key on.
func (t *tree) from(key string) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		t.entries.Ascend(entry{key: key}, func(e entry) bool { return yield(e.version) })
	}
}
