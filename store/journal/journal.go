// Package journal is the contract between the revisioned core and whatever
// makes its revisions durable. It knows no Kubernetes: a revision is a number,
// a key is a string, a value is bytes.
//
// The core owns the numbering and the meaning; a journal owns durability. One
// core uses one journal, and nothing else writes to it.
package journal

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Record is what one revision did to one key. There is exactly one record per
// revision, and revisions rise by one.
type Record struct {
	// Revision is the record's own number, never 0.
	Revision uint64
	// Previous is the revision of the record that this one supersedes: the last
	// record of the same key, unless that was a tombstone. 0 means that the key
	// did not exist.
	Previous uint64
	// Deleted marks a tombstone. A tombstone carries no Value; the object that
	// was deleted is the record at Previous.
	Deleted bool
	Key     string
	// Value is owned by the journal once appended, and by the reader once read, but
	// for Replay; neither side changes the bytes afterwards.
	Value []byte
	// Committed is when the core accepted the record, in UTC. It is kept with
	// at least microsecond precision.
	Committed time.Time
	// Expires is when the core has to delete the key; the zero time is never.
	Expires time.Time
}

// Journal makes records durable and gives them back. Append is called by one
// goroutine at a time, and so is Trim, but the two may run beside each other.
// Read, Err and the wait functions returned by Append may be called by any number
// of goroutines beside them. Close is called when all other calls have returned.
type Journal interface {
	// Replay calls yield for every record held, in rising revision order, and
	// returns the compacted revision last given to Trim (0 if never). It is
	// called once, before the first Append. An error of yield ends it and is
	// returned. A record that cannot be read back exactly as it was appended is
	// reported as an error matching ErrDamaged; it is never skipped. A journal may
	// use the memory of a record's Value again once yield has returned, unless it
	// keeps its records in memory.
	Replay(ctx context.Context, yield func(Record) error) (compacted uint64, err error)

	// Append accepts the next record, whose revision is one above that of the last
	// record ever appended, or above the compacted revision where that is higher;
	// the first record of a new journal may have any. It does not wait for the
	// disk: the record is durable when wait returns nil, and then so is everything
	// appended or trimmed before it. A nil wait means that it is durable (or as
	// durable as it will ever be) already.
	//
	// After a failed Append or wait the fate of that record and of all later
	// ones is unknown until the journal is opened again; the journal accepts no
	// more records and Err says why. See Recoverer.
	Append(record Record) (wait func() error, err error)

	// Read returns the record of one revision. ErrNotFound if it has been
	// trimmed or never existed, an error matching ErrDamaged if it cannot be
	// read back exactly. A record may be read as soon as Append returned.
	Read(revision uint64) (Record, error)

	// Trim makes compacted the compacted revision and forgets the records named
	// in drop, atomically. Dropping a record that does not exist is no error.
	// It need not be durable on return: after a crash, all or nothing of a Trim
	// may be undone, and the core trims again.
	//
	// The compacted revision may be above that of every record, also in a journal
	// that has none; the next record then follows it. That is how a journal begins
	// at a high revision, or jumps to one, without the records in between. Such a
	// Trim is durable on return, because the newest revision must never fall, and
	// it does not run beside Append.
	Trim(compacted uint64, drop []uint64) error

	// Err is nil while the journal can accept records, and otherwise the reason
	// why it cannot. The core turns read-only on it.
	Err() error

	// Close waits for what has been appended and releases all resources. The
	// journal must not be used afterwards. Closing twice is an error-free no-op.
	Close() error
}

// Recoverer is a journal that can go on after some failures without a new
// process.
type Recoverer interface {
	Journal

	// Recover opens the journal anew, as the next process would, after a failure
	// that Err reports as one matching ErrTransient. What it returns takes the
	// place of the failed journal, beginning with Replay. The failed one can still
	// be read until it is closed; close both. It may be the journal itself, which
	// then accepts records again, and is closed once.
	//
	// It is called when every call of Append and Trim, and every wait, has returned.
	// After an error that matches ErrTransient it can be called again, later; any
	// other means that the journal has failed for good, and Err says the same then.
	Recover() (Journal, error)
}

// Purger is a journal whose files go on to hold for a while what Trim has dropped.
type Purger interface {
	Journal

	// Purge returns when none of the journal's files holds a record any more that was
	// dropped before it was called. It may write everything anew that is kept. It runs
	// beside all calls but Close, and ends early with the context.
	Purge(ctx context.Context) error
}

var (
	// ErrTransient marks a failure that leaves nothing in doubt but what a killed
	// process leaves in doubt, the records not known to be durable, and whose cause
	// may pass: a full disk, a used-up quota, too many open files. A failed sync is
	// none: what the operating system then shows need not be what is on the disk.
	// Only a Recoverer reports it.
	ErrTransient = errors.New("the cause may pass")
	// ErrNotFound is returned by Read for a revision without a record.
	ErrNotFound = errors.New("no record at this revision")
	// ErrDamaged marks data that is there but cannot be trusted. It survives
	// wrapping: test for it with errors.Is.
	ErrDamaged = errors.New("damaged record")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("journal is closed")
	// ErrDirectoryGone is a failure of a journal whose directory was removed, renamed
	// or replaced while it was open. It is transient: the journal goes on in the same
	// directory when that is back.
	ErrDirectoryGone = errors.New("its directory was removed while in use")
	// ErrLockLost is a failure of a journal whose lock file was removed or replaced
	// while it was open: another process may have opened the directory since. It lasts
	// until the journal is opened again.
	ErrLockLost = errors.New("its lock file was removed or replaced, and another process may be using the directory: stop all of them and " +
		"start one")
	// ErrUnresponsive is what Err returns while the file system of a journal does not
	// answer. Nothing has failed yet.
	ErrUnresponsive = errors.New("the file system does not answer")
	// ErrLocked is returned on opening a journal that another process has open.
	ErrLocked = errors.New("in use by another process")
)

// Damaged returns an error matching ErrDamaged that names the revision (0 if it
// cannot be told) and says what is wrong.
func Damaged(revision uint64, format string, args ...any) error {
	what := fmt.Errorf(format, args...)
	if revision == 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, what)
	}
	return fmt.Errorf("revision %d: %w: %w", revision, ErrDamaged, what)
}

// Damage is records that are there, or should be, and cannot be read.
type Damage struct {
	// First and Last are the revisions of the records; both are 0 if that cannot be
	// told.
	First, Last uint64
	// Err says what is wrong.
	Err error
}

func (d *Damage) Error() string { return fmt.Sprintf("revisions %d to %d: %v", d.First, d.Last, d.Err) }
func (d *Damage) Unwrap() error { return d.Err }

// Transient marks an error as one that matches ErrTransient. Its text stays.
func Transient(err error) error { return transient{err} }

// Refused returns the error of an operation on a file marked as transient if the
// operating system refused it for want of room or of handles; else as it is. It is
// not for errors of a sync.
func Refused(err error) error {
	switch {
	case errors.Is(err, ErrTransient):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return Transient(err)
	}
	return err
}

type transient struct{ error }

func (t transient) Unwrap() error { return t.error }

func (transient) Is(target error) bool { return target == ErrTransient }
