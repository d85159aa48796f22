package driver

import (
	"context"
	"errors"

	"github.com/annexapi/annex/store/journal"
)

// Edited is a journal that shows its records in a form that people can change, such as files. The records are
// authoritative; edits become ordinary writes. An Edited journal stays the same value when it is recovered.
type Edited interface {
	journal.Journal
	// Run shows the records and watches for edits until the context ends; then it spends at most a few seconds on
	// showing the remaining records. It is called once, after Replay and before Close.
	Run(ctx context.Context, decide Decide) error
	// Observed returns a channel that is closed when Run has looked at everything once and every difference has been
	// decided.
	Observed() <-chan struct{}
	// Problems returns the edits that are not served, by path.
	Problems() []Problem
	// Overdue returns the records that could not be shown yet, by path. They are shown as soon as possible.
	Overdue() []Problem
}

// Decide carries an edit out, or returns the reason against it. An error that matches ErrBroken stands until the next
// edit; after any other error the same edit is proposed again. On success Decide returns the object that would be
// stored if the document were accepted unchanged, with defaults filled in, or nil if that is unknown. The document is
// left alone if the object is equivalent to it. Decide is called concurrently, but for one key at a time.
type Decide func(ctx context.Context, edit *Edit) (says []byte, err error)

// Edit is a person's change of one object.
type Edit struct {
	// Key is the key of the object, and Path the place of the edit, for messages.
	Key, Path string
	// Document is the content of the edit, in JSON. It is nil if the object was removed.
	Document []byte
	// Onto returns the document to write, given the stored object in JSON: the person's document, or, if the object
	// has changed since it was shown, the stored object with the person's changes merged in. It is nil if the object
	// was removed.
	Onto func(stored []byte) []byte
}

// Deleted reports whether the edit removes the object.
func (e *Edit) Deleted() bool { return e.Document == nil }

// Problem is a difference between a record and its visible form.
type Problem struct {
	// Path is the place of the problem, Reason its description.
	Path, Reason string
}

// ErrBroken marks an error in the edit itself.
var ErrBroken = errors.New("broken edit")

// Broken marks an error as a fault of the edit. The text of the error stays the same.
func Broken(err error) error { return broken{err} }

type broken struct{ error }

func (b broken) Is(target error) bool { return target == ErrBroken }
func (b broken) Unwrap() error        { return b.error }
