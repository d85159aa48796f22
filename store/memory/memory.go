// Package memory is a journal that keeps its records in memory and loses them when it is closed. In all else it
// behaves like a durable journal, so that a test against it is meaningful for durable journals too.
package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

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
func NewAfter(revision uint64) journal.Journal {
	return &memory{records: map[uint64]journal.Record{}, last: revision, compacted: revision}
}

type memory struct {
	mu        sync.RWMutex
	records   map[uint64]journal.Record // nil once closed
	most      int                       // the largest number of records since the map was made
	last      uint64                    // the revision that the next record has to follow; 0 allows any
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
	// A map keeps the memory of its largest size, and so would its clone.
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
