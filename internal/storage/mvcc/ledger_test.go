package mvcc_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// ledger is a journal whose disk a test controls. Its records outlive Close, for reopen.
type ledger struct {
	mu        sync.Mutex
	records   map[uint64]journal.Record
	compacted uint64
	closed    bool
	reads     int

	// A held ledger syncs only when sync is called. It sends appended revisions to appended.
	held     bool
	appended chan uint64
	synced   chan struct{} // closed and replaced by sync
	durable  uint64
	last     uint64

	// The append or the wait of this revision fails; 0 for none.
	failAppend uint64
	failWait   uint64
	failWith   error // errDisk if nil
	err        error
	failTrim   error

	// recover makes the ledger recoverable.
	recover func() (journal.Journal, error)

	onRead func()        // called before each Read
	onTrim func()        // called after each Trim
	asked  chan struct{} // notified when Err returns an error
}

var errDisk = errors.New("the disk is gone")

func newLedger(records ...journal.Record) *ledger {
	l := &ledger{
		records:  map[uint64]journal.Record{},
		appended: make(chan uint64, 100),
		synced:   make(chan struct{}),
		asked:    make(chan struct{}, 1),
	}
	for _, r := range records {
		l.records[r.Revision] = r
	}
	return l
}

// reopen returns a ledger with the durable records of this one.
func (l *ledger) reopen() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := newLedger(slices.Collect(maps.Values(l.records))...)
	again.compacted = l.compacted
	return again
}

func (l *ledger) Replay(_ context.Context, yield func(journal.Record) error) (uint64, error) {
	for _, revision := range slices.Sorted(maps.Keys(l.records)) {
		if err := yield(l.records[revision]); err != nil {
			return 0, err
		}
	}
	return l.compacted, nil
}

func (l *ledger) Append(r journal.Record) (func() error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if l.closed {
		return nil, journal.ErrClosed
	}
	if r.Revision == l.failAppend {
		l.err = cmp.Or(l.failWith, errDisk)
		return nil, l.err
	}
	l.records[r.Revision] = r
	l.last = r.Revision
	if l.held {
		l.appended <- r.Revision
	} else {
		l.durable = r.Revision
	}
	return func() error { return l.wait(r.Revision) }, nil
}

func (l *ledger) wait(revision uint64) error {
	for {
		l.mu.Lock()
		synced := l.synced
		switch {
		case l.failWait != 0 && revision >= l.failWait:
			l.err = cmp.Or(l.failWith, errDisk)
			l.mu.Unlock()
			return l.failed()
		case l.durable >= revision:
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		<-synced
	}
}

func (l *ledger) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// hold makes appended records wait for sync.
func (l *ledger) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
}

// sync makes all appended records durable, or fails from a revision on.
func (l *ledger) sync(failFrom uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.durable = l.last
	l.failWait = failFrom
	close(l.synced)
	l.synced = make(chan struct{})
}

// waitAppended waits until a revision has been appended to a held ledger.
func (l *ledger) waitAppended(t testing.TB, revision uint64) {
	t.Helper()
	for {
		select {
		case appended := <-l.appended:
			if appended >= revision {
				return
			}
		case <-time.After(patience):
			t.Fatalf("revision %d is not appended", revision)
		}
	}
}

func (l *ledger) Read(revision uint64) (journal.Record, error) {
	if l.onRead != nil {
		l.onRead()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.closed {
		return journal.Record{}, journal.ErrClosed
	}
	r, ok := l.records[revision]
	if !ok {
		return journal.Record{}, journal.ErrNotFound
	}
	return r, nil
}

func (l *ledger) Trim(compacted uint64, drop []uint64) error {
	if l.onTrim != nil {
		defer l.onTrim()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failTrim != nil {
		return l.failTrim
	}
	l.compacted = compacted
	for _, revision := range drop {
		delete(l.records, revision)
	}
	return nil
}

func (l *ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		select {
		case l.asked <- struct{}{}:
		default:
		}
	}
	return l.err
}

func (l *ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

// recoverable is a ledger that implements journal.Recoverer.
type recoverable struct{ *ledger }

func (r recoverable) Recover() (journal.Journal, error) { return r.ledger.recover() }

// revisions returns the revisions of the records.
func (l *ledger) revisions() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.records))
}
