// Package journal is the contract between the revisioned core and the storage that makes its revisions durable. It
// knows no Kubernetes: a revision is a number, a key is a string, a value is bytes.
//
// The core owns the numbering and the meaning; a journal owns durability. One core uses one journal, and nothing else
// writes to it.
package journal

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Record is the effect of one revision on one key. There is exactly one record per revision, and revisions rise by
// one.
type Record struct {
	// Revision is the number of the record, never 0.
	Revision uint64
	// Previous is the revision of the superseded record: the last record of the same key, unless that was a
	// tombstone. 0 means that the key did not exist.
	Previous uint64
	// Deleted marks a tombstone. A tombstone carries no Value; the deleted object is the record at Previous.
	Deleted bool
	Key     string
	// Value is owned by the journal once appended, and by the reader once read (except in Replay). Neither side
	// changes the bytes afterwards.
	Value []byte
	// Committed is the time at which the core accepted the record, in UTC. A journal keeps it with at least
	// microsecond precision.
	Committed time.Time
	// Expires is the time at which the core has to delete the key; the zero time is never.
	Expires time.Time
	// User is the name of the user who wrote, for keys whose history is kept. A journal that does not keep it returns records
	// without it.
	User string
}

// Journal makes records durable and returns them. Append is called by one goroutine at a time, and so is Trim, but
// the two may run concurrently. Read, Err and the wait functions returned by Append may be called concurrently with
// them and with each other. Close is called when all other calls have returned.
type Journal interface {
	// Replay calls yield for every record held, in rising revision order, and returns the compacted revision last
	// given to Trim (0 if never). It is called once, before the first Append. It stops at an error of yield and
	// returns that error. A record that cannot be read back exactly as it was appended is reported as an error
	// matching ErrDamaged; it is never skipped. A journal may reuse the memory of a record's Value once yield has
	// returned, unless it keeps its records in memory.
	Replay(ctx context.Context, yield func(Record) error) (compacted uint64, err error)

	// Append accepts the next record. Its revision is one above that of the last record ever appended, or above the
	// compacted revision if that is higher; the first record of a new journal may have any revision. Append does not
	// wait for the disk: the record, and everything appended or trimmed before it, is durable when wait returns nil.
	// A nil wait means that the record is durable already, or as durable as it will ever be.
	//
	// After a failed Append or wait the fate of that record and of all later records is unknown until the journal is
	// opened again. The journal then accepts no more records, and Err returns the reason. See Recoverer.
	Append(record Record) (wait func() error, err error)

	// Read returns the record of one revision. It returns an error matching ErrNotFound if the record has been
	// trimmed or never existed, and one matching ErrDamaged if it cannot be read back exactly. A record can be read
	// as soon as Append has returned.
	Read(revision uint64) (Record, error)

	// Trim sets the compacted revision and removes the records with the revisions in drop, atomically. Dropping a
	// record that does not exist is no error. Trim need not be durable on return: a crash may undo it, as a whole,
	// and the core trims again.
	//
	// The compacted revision may be above that of every record, also in an empty journal; the next record then
	// follows it. In this way a journal begins at a high revision, or jumps to one, without the records in between.
	// Such a Trim is durable on return, because the newest revision must never fall, and it does not run concurrently
	// with Append.
	Trim(compacted uint64, drop []uint64) error

	// Err returns nil while the journal accepts records, and otherwise the reason why it does not. The core turns
	// read-only on an error.
	Err() error

	// Close waits for appended records to become durable and releases all resources. The journal must not be used
	// afterwards. A second call does nothing and returns nil.
	Close() error
}

// Recoverer is a journal that can resume after some failures without a new process.
type Recoverer interface {
	Journal

	// Recover opens the journal anew, as the next process would, after a failure that Err reports as an error
	// matching ErrTransient. The returned journal replaces the failed one, beginning with Replay. The failed journal
	// can still be read until it is closed; close both. Recover may return the receiver itself, which then accepts
	// records again, and is closed once.
	//
	// It is called when every call of Append and Trim, and every wait, has returned. After an error that matches
	// ErrTransient it can be called again later. Any other error means that the journal has failed for good, and Err
	// returns the same error from then on.
	Recover() (Journal, error)
}

// ManyReader is a journal that reads many records faster than one by one.
type ManyReader interface {
	Journal

	// ReadMany calls yield for each of the records with these revisions, which rise, until yield returns false. It leaves out
	// those that Read would not find. A record's Value is valid until yield returns. An error, as those of Read, ends it. It may be
	// called concurrently with everything but Close.
	ReadMany(revisions []uint64, yield func(Record) bool) error
}

// Purger is a journal whose files may hold dropped records for a while after Trim.
type Purger interface {
	Journal

	// Purge returns when none of the journal's files holds a record dropped before the call. It may rewrite all kept
	// records. It runs concurrently with all calls but Close, and ends early with the context.
	Purge(ctx context.Context) error
}

// Shelf is a journal with an ordered space of keys beside its records, the shelf. The core moves records there that it
// keeps beyond the compacted revision: they are read on demand, and not replayed. ReadShelf and ScanShelf may be called
// concurrently with everything but Close.
type Shelf interface {
	Journal

	// TrimAndShelve is Trim, and changes the shelf in the same atomic step. A crash may undo both, and only both.
	TrimAndShelve(compacted uint64, drop []uint64, edits []ShelfEdit) error

	// ReadShelf returns the value at a key, nil if there is none. The caller must not change it.
	ReadShelf(key string) ([]byte, error)

	// ScanShelf calls yield for the keys from one key on and below another, in their order or backwards, until yield
	// returns false. The value is valid until yield returns.
	ScanShelf(from, below string, backwards bool, yield func(key string, value []byte) bool) error
}

// ShelfEdit sets a key of a shelf; a nil Value removes it.
type ShelfEdit struct {
	Key   string
	Value []byte
}

var (
	// ErrTransient marks a failure whose cause may pass: a full disk, an exhausted quota, too many open files. It
	// leaves no more in doubt than a killed process does, which is the records not known to be durable. A failed sync
	// is not transient: afterwards the operating system may show data that is not on the disk. Only a Recoverer
	// reports ErrTransient.
	ErrTransient = errors.New("the cause may pass")
	// ErrNotFound is returned by Read for a revision without a record.
	ErrNotFound = errors.New("no record at this revision")
	// ErrDamaged marks data that exists but cannot be trusted. Errors wrap it: test for it with errors.Is.
	ErrDamaged = errors.New("damaged record")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("journal is closed")
	// ErrDirectoryGone is a failure of a journal whose directory was removed, renamed or replaced while it was open.
	// It is transient: the journal resumes in the same directory when that is back.
	ErrDirectoryGone = errors.New("its directory was removed while in use")
	// ErrLockLost is a failure of a journal whose lock file was removed or replaced while it was open: another
	// process may have opened the directory since. It lasts until the journal is opened again.
	ErrLockLost = errors.New("its lock file was removed or replaced, and another process may be using the directory: stop all of them and " +
		"start one")
	// ErrUnresponsive is returned by Err while the file system of a journal does not answer. Nothing has failed yet.
	ErrUnresponsive = errors.New("the file system does not respond")
	// ErrLocked is returned on opening a journal that another process has open.
	ErrLocked = errors.New("in use by another process")
)

// Damaged returns an error matching ErrDamaged that names the revision (0 if it is unknown) and describes the damage.
func Damaged(revision uint64, format string, args ...any) error {
	what := fmt.Errorf(format, args...)
	if revision == 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, what)
	}
	return fmt.Errorf("revision %d: %w: %w", revision, ErrDamaged, what)
}

// Damage is a range of records that cannot be read although they exist, or should exist.
type Damage struct {
	// First and Last are the revisions of the range; both are 0 if they are unknown.
	First, Last uint64
	// Err describes the damage.
	Err error
}

func (d *Damage) Error() string { return fmt.Sprintf("revisions %d to %d: %v", d.First, d.Last, d.Err) }
func (d *Damage) Unwrap() error { return d.Err }

// Transient wraps an error so that it matches ErrTransient. The text of the error stays the same.
func Transient(err error) error { return transient{err} }

// Refused wraps the error of a file operation so that it matches ErrTransient, if the operating system refused the
// operation for lack of space or of file handles. Any other error is returned unchanged. Refused is not for errors of
// a sync.
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
