// Package memory is a journal that keeps its records in memory and loses them when it is closed. In all else it
// behaves like a durable journal, so that a test against it is meaningful for durable journals too.
//
// A Store keeps the records of a server that has ended, can be copied while its server runs, and be written to a file.
package memory

import (
	"context"
	"fmt"
	"sync"

	"github.com/tidwall/btree"

	"github.com/annexapi/annex/store/journal"
)

// New returns an empty journal. Its records are as durable as they will ever be when Append returns.
func New() journal.Journal {
	return NewAfter(0)
}

// NewAfter returns an empty journal with the given compacted revision, so that the first record follows that
// revision. A store that loses everything at its end has to begin above all of its earlier revisions. Clients that
// return with an earlier revision then get an expired error, and read everything anew. If the store began at the same
// revisions again, these clients would wait for past events, or get the wrong ones.
func NewAfter(revision uint64) journal.Journal { return newMemory(revision) }

func newMemory(revision uint64) *memory {
	return &memory{records: newRecords(), shelf: newShelf(), last: revision, compacted: revision}
}

// records are sorted by revision. A copy costs nothing and is independent of its original.
type records = btree.BTreeG[*journal.Record]

func newRecords() *records {
	byRevision := func(a, b *journal.Record) bool { return a.Revision < b.Revision }
	return btree.NewBTreeGOptions(byRevision, btree.Options{NoLocks: true})
}

// shelf is sorted by key.
type shelf = btree.BTreeG[journal.ShelfEdit]

func newShelf() *shelf {
	byKey := func(a, b journal.ShelfEdit) bool { return a.Key < b.Key }
	return btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true})
}

type memory struct {
	mu        sync.RWMutex
	records   *records
	shelf     *shelf
	closed    bool
	kept      bool   // after Close, by a Store
	last      uint64 // the revision that the next record has to follow; 0 allows any
	compacted uint64
}

// fork returns a journal with the same records. Neither sees what happens to the other.
func (m *memory) fork() *memory {
	m.mu.Lock() // a copy changes its original, too
	defer m.mu.Unlock()
	return &memory{records: m.records.Copy(), shelf: m.shelf.Copy(), last: m.last, compacted: m.compacted}
}

// revision returns the revision of the last record, or of the state before the first.
func (m *memory) revision() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.last
}

// Replay implements journal.Journal.
func (m *memory) Replay(ctx context.Context, yield func(journal.Record) error) (uint64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return 0, journal.ErrClosed
	}
	var err error
	m.records.Scan(func(r *journal.Record) bool {
		if err = ctx.Err(); err == nil {
			err = yield(*r)
		}
		return err == nil
	})
	if err != nil {
		return 0, err
	}
	return m.compacted, nil
}

// Append implements journal.Journal.
func (m *memory) Append(record journal.Record) (wait func() error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, journal.ErrClosed
	case m.last != 0 && record.Revision != m.last+1:
		return nil, fmt.Errorf("append revision %d: the last one is %d", record.Revision, m.last)
	}
	m.records.Set(&record)
	m.last = record.Revision
	return nil, nil
}

// Read implements journal.Journal.
func (m *memory) Read(revision uint64) (journal.Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return journal.Record{}, journal.ErrClosed
	}
	record, ok := m.records.Get(&journal.Record{Revision: revision})
	if !ok {
		return journal.Record{}, fmt.Errorf("revision %d: %w", revision, journal.ErrNotFound)
	}
	return *record, nil
}

// Trim implements journal.Journal.
func (m *memory) Trim(compacted uint64, drop []uint64) error {
	return m.TrimAndShelve(compacted, drop, nil)
}

var _ journal.Shelf = (*memory)(nil)

// TrimAndShelve implements journal.Shelf.
func (m *memory) TrimAndShelve(compacted uint64, drop []uint64, edits []journal.ShelfEdit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return journal.ErrClosed
	}
	m.compacted, m.last = compacted, max(m.last, compacted)
	for _, revision := range drop {
		m.records.Delete(&journal.Record{Revision: revision})
	}
	for _, edit := range edits {
		if edit.Value == nil {
			m.shelf.Delete(edit)
		} else {
			m.shelf.Set(edit)
		}
	}
	return nil
}

// ReadShelf implements journal.Shelf.
func (m *memory) ReadShelf(key string) ([]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, journal.ErrClosed
	}
	found, _ := m.shelf.Get(journal.ShelfEdit{Key: key})
	return found.Value, nil
}

// ScanShelf implements journal.Shelf.
func (m *memory) ScanShelf(from, below string, backwards bool, yield func(key string, value []byte) bool) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return journal.ErrClosed
	}
	if !backwards {
		m.shelf.Ascend(journal.ShelfEdit{Key: from}, func(e journal.ShelfEdit) bool { return e.Key < below && yield(e.Key, e.Value) })
		return nil
	}
	m.shelf.Descend(journal.ShelfEdit{Key: below}, func(e journal.ShelfEdit) bool {
		return e.Key >= below || e.Key >= from && yield(e.Key, e.Value)
	})
	return nil
}

// Err implements journal.Journal.
func (m *memory) Err() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return journal.ErrClosed
	}
	return nil
}

// Close implements journal.Journal.
func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if !m.kept {
		m.records, m.shelf = newRecords(), newShelf()
	}
	return nil
}
