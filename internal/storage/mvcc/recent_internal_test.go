package mvcc

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestTree_randomChanges compares a tree with a map, with more and with fewer entries than slots.
func TestTree_randomChanges(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	latest, want := newTree(), map[string]*version{}
	key := func() string { return fmt.Sprintf("/widgets/w-%04d", random.IntN(2000)) }
	var snapshot *tree
	var then map[string]*version
	for i := range 40_000 {
		switch k := key(); {
		case random.IntN(4) == 0 || i > 30_000 && random.IntN(2) == 0: // fewer at the end
			latest.remove(k)
			delete(want, k)
		case random.IntN(2) == 0:
			v := &version{key: k, deleted: random.IntN(5) == 0}
			if replaced := latest.set(v); replaced != want[k] {
				t.Fatalf("%d: setting %s replaces %p, want %p", i, k, replaced, want[k])
			}
			want[k] = v
		}
		if k := key(); latest.get(k) != want[k] {
			t.Fatalf("%d: %s is %p, want %p", i, k, latest.get(k), want[k])
		}
		if i == 20_000 {
			snapshot, then = latest.copy(), maps.Clone(want)
		}
	}
	for k := range then {
		if snapshot.get(k) != then[k] {
			t.Errorf("%s was %p, and is %p in the copy", k, then[k], snapshot.get(k))
		}
	}
	if got := len(latest.recent.places); got != 1024 && got != 2048 {
		t.Errorf("%d places", got)
	}
	for i := range latest.recent.places {
		if v := latest.recent.places[i].Load(); v != nil && want[v.key] != v {
			t.Errorf("%s is remembered, and not in the tree any more", v.key)
		}
	}
}

func TestTree_concurrentReads(t *testing.T) {
	t.Parallel()
	latest := newTree()
	var keys []string
	for i := range 5 * fewestPlaces {
		keys = append(keys, fmt.Sprintf("/widgets/w-%04d", i))
		latest.set(&version{key: keys[i]})
	}
	var reading sync.WaitGroup
	for range 8 {
		reading.Go(func() {
			for _, i := range rand.Perm(len(keys)) {
				if v := latest.get(keys[i]); v == nil || v.key != keys[i] {
					t.Errorf("%s is %+v", keys[i], v)
				}
			}
		})
	}
	reading.Wait()
}
