package mvcc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/annexapi/annex/store/journal"
)

// Values are added and dropped at random. The remaining values keep their bytes, also for readers that hold them from
// before, and their slabs take little more memory than their length.
func TestSlabs_randomChanges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var s slabs
	type held struct {
		*version
		want []byte
		read []byte // as a reader got it at first
	}
	var alive []held
	drop := func(i int) {
		s.drop(alive[i].version)
		if alive[i].value.Load() != nil {
			t.Fatal("a value that was dropped is there")
		}
		alive[i] = alive[len(alive)-1]
		alive = alive[:len(alive)-1]
	}
	for revision := range uint64(60_000) {
		size := random.IntN(3000)
		switch random.IntN(100) {
		case 0:
			size = 0
		case 1:
			size = largestSlabbed - 1 + random.IntN(3)
		}
		v := newVersion(journal.Record{Revision: revision + 2, Value: bytes.Repeat(fmt.Appendf(nil, "%d;", revision), size)[:size]}, nil)
		want := bytes.Clone(v.value.Load().data)
		s.keep(v)
		alive = append(alive, held{v, want, v.value.Load().data})
		// There are many values at first, then few, and many again.
		for most := []int{3000, 20, 1500, 0, 2000, 500}[revision/10_000]; len(alive) > most; {
			drop(random.IntN(len(alive)))
		}
		if revision%500 != 0 {
			continue
		}
		var live, room int64
		seen := map[*slab]bool{}
		for _, a := range alive {
			value := a.value.Load()
			if !bytes.Equal(value.data, a.want) || !bytes.Equal(a.read, a.want) || cap(value.data) != len(value.data) && value.slab != nil {
				t.Fatalf("revision %d has other bytes", a.revision)
			}
			if slabbed := value.slab != nil; slabbed != (len(a.want) > 0 && len(a.want) <= largestSlabbed) {
				t.Fatalf("a value of %d bytes is in a slab: %t", len(a.want), slabbed)
			}
			if value.slab == nil {
				continue
			}
			live += int64(len(value.data))
			if !seen[value.slab] {
				seen[value.slab] = true
				room += int64(value.slab.size + len(value.slab.room))
			}
		}
		if live != s.bytes {
			t.Fatalf("%d bytes are alive, %d counted", live, s.bytes)
		}
		if most := live*4/3 + live/8 + 3*slabSize; room > most {
			t.Fatalf("%d slabs of %d bytes hold %d", len(seen), room, live)
		}
	}
	for len(alive) > 0 {
		drop(0)
	}
	if s.bytes != 0 || s.inUse.live != 0 {
		t.Errorf("%d bytes are counted, %d in the last slab, and there is nothing", s.bytes, s.inUse.live)
	}
}

// Before there are readers, the memory of given-up slabs is reused, and the remaining values keep their bytes.
func TestSlabs_replay_reusesMemory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	again := make(chan []byte, memoryAgain)
	read, linked := slabs{again: again}, slabs{again: again}
	type held struct {
		*version
		want []byte
	}
	var alive []held
	var replayed []*version
	made := map[*byte]int{} // sizes of the memory of slabs
	batch := 0
	for revision := range uint64(40_000) {
		value := bytes.Repeat(fmt.Appendf(nil, "%d;", revision), 1000)[:random.IntN(2000)]
		v := read.versionOf(journal.Record{Revision: revision + 2, Value: value})
		replayed, alive = append(replayed, v), append(alive, held{v, bytes.Clone(value)})
		clear(value) // the journal owns the value
		if read.inUse != nil {
			made[&read.inUse.memory[0]] = len(read.inUse.memory)
		}
		if len(replayed)-batch < linkBatch {
			continue
		}
		for _, v := range replayed[batch:] {
			linked.keep(v)
		}
		batch, read.inUse = len(replayed), nil
		for len(alive) > 1000 {
			i := random.IntN(len(alive))
			linked.drop(alive[i].version)
			alive[i] = alive[len(alive)-1]
			alive = alive[:len(alive)-1]
		}
	}
	for _, v := range replayed[batch:] {
		linked.keep(v)
	}
	linked.settle(replayed)
	var live, room int64
	seen := map[*slab]bool{}
	for _, a := range alive {
		value := a.value.Load()
		if !bytes.Equal(value.data, a.want) {
			t.Fatalf("revision %d has other bytes", a.revision)
		}
		if live += int64(len(value.data)); value.slab != nil && !seen[value.slab] {
			seen[value.slab] = true
			room += int64(len(value.slab.memory))
		}
	}
	if live != linked.bytes {
		t.Errorf("%d bytes are alive, %d counted", live, linked.bytes)
	}
	if most := live*4/3 + live/8 + 4*slabSize; room > most {
		t.Errorf("%d slabs of %d bytes hold %d", len(seen), room, live)
	}
	total := 0
	for _, size := range made {
		total += size
	}
	if most := 10 << 20; total > most {
		t.Errorf("%d bytes are allocated for values of 40 MB, of which 1 MB is alive at a time", total)
	}
	readable := alive[0].value.Load().data
	linked.drop(alive[0].version)
	for range 500 {
		linked.keep(newVersion(journal.Record{Value: bytes.Repeat([]byte("x"), 1000)}, nil))
	}
	if !bytes.Equal(readable, alive[0].want) {
		t.Error("memory was used again although it may be read")
	}
}

// Values that a journal keeps in memory are not held twice.
func TestSlabs_off_keepsAllocations(t *testing.T) {
	s := slabs{off: true}
	v := newVersion(journal.Record{Revision: 2, Value: []byte("value")}, nil)
	before := v.value.Load()
	if s.keep(v); v.value.Load() != before || s.inUse != nil {
		t.Error("it was copied")
	}
	if s.drop(v); v.value.Load() != nil {
		t.Error("it was not dropped")
	}
}
