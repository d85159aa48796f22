// Package memory is a journal that keeps its records in memory and loses them
// when it is closed. Everything else is as with a durable one, so that a test
// against it says something about those.
package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/annexapi/annex/store/journal"
)

// New returns an empty journal. Its records are as durable as they will ever be
// when Append returns.
func New() journal.Journal {
	return NewAfter(0)
}

// NewAfter returns an empty journal whose compacted revision is given, so that its
// first record follows that one. A store that forgets everything when it ends needs
// to begin above all revisions that it had before: clients that come back with one
// of those are then told that it has expired, and read everything anew. If the
// store began at the same revisions again, they would wait for events that have
// been, or be given the wrong ones.
func NewAfter(revision uint64) journal.Journal {
	return &memory{records: map[uint64]journal.Record{}, last: revision, compacted: revision}
}

type memory struct {
	mu        sync.RWMutex
	records   map[uint64]journal.Record // nil once closed
	most      int                       // records ever, since the map was made
	last      uint64                    // that the next record has to follow, 0 if it may be any
	compacted uint64
}

// Replay implements journal.Journal.
func (m *memory) Replay(ctx context.Context, yield func(journal.Record) error) (uint64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.records == nil {
		return 0, journal.ErrClosed
	}
	for _, revision := range slices.Sorted(maps.Keys(m.records)) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := yield(m.records[revision]); err != nil {
			return 0, err
		}
	}
	return m.compacted, nil
}

// Append implements journal.Journal.
func (m *memory) Append(record journal.Record) (wait func() error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.records == nil:
		return nil, journal.ErrClosed
	case m.last != 0 && record.Revision != m.last+1:
		return nil, fmt.Errorf("append revision %d: the last one is %d", record.Revision, m.last)
	}
	m.records[record.Revision] = record
	m.most = max(m.most, len(m.records))
	m.last = record.Revision
	return nil, nil
}

// Read implements journal.Journal.
func (m *memory) Read(revision uint64) (journal.Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.records == nil {
		return journal.Record{}, journal.ErrClosed
	}
	record, ok := m.records[revision]
	if !ok {
		return journal.Record{}, fmt.Errorf("revision %d: %w", revision, journal.ErrNotFound)
	}
	return record, nil
}

// Trim implements journal.Journal.
func (m *memory) Trim(compacted uint64, drop []uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records == nil {
		return journal.ErrClosed
	}
	m.compacted, m.last = compacted, max(m.last, compacted)
	for _, revision := range drop {
		delete(m.records, revision)
	}
	// A map keeps the room of all that was ever in it, and so would its clone.
	if m.most > 1024 && len(m.records) < m.most/4 {
		smaller := make(map[uint64]journal.Record, len(m.records))
		maps.Copy(smaller, m.records)
		m.records, m.most = smaller, len(smaller)
	}
	return nil
}

// Err implements journal.Journal.
func (m *memory) Err() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.records == nil {
		return journal.ErrClosed
	}
	return nil
}

// Close implements journal.Journal.
func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = nil
	return nil
}
