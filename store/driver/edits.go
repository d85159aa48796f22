package driver

import (
	"context"
	"errors"

	"github.com/annexapi/annex/store/journal"
)

// Edited is a journal that shows its records where people can change them, in files say.
// The records decide; what people make of them is carried out as ordinary writes. It stays
// the same when it is recovered.
type Edited interface {
	journal.Journal
	// Run shows the records and watches for edits until the context ends; then it shows what
	// is left, for at most a few seconds. It is called once, after Replay and before Close.
	Run(ctx context.Context, decide Decide) error
	// Observed is closed when Run has looked at everything once, and has had decided what
	// differed.
	Observed() <-chan struct{}
	// Problems are edits that are not served, by path.
	Problems() []Problem
	// Overdue are records that could not be shown yet, by path. They are shown as soon as
	// they can be.
	Overdue() []Problem
}

// Decide carries an edit out, or says why not: an error that matches ErrBroken stands until
// there is another edit; after any other one the edit is proposed again. It returns what
// would be stored if the document were taken as it is, with defaults filled in; nil if that
// is not known. The document is left as it is if the object says the same. It is called by
// several goroutines, for one key at a time.
type Decide func(ctx context.Context, edit *Edit) (says []byte, err error)

// Edit is what a person has made of one object.
type Edit struct {
	// Key is that of the object, and Path says where the edit is, for people.
	Key, Path string
	// Document is what it says, in JSON. It is nil if the object was removed.
	Document []byte
	// Onto returns the document to write where the object is stored as JSON: the person's,
	// or, if the object has changed since it was shown, the object with what the person
	// changed. It is nil if the object was removed.
	Onto func(stored []byte) []byte
}

// Deleted tells whether the object was removed.
func (e *Edit) Deleted() bool { return e.Document == nil }

// Problem is something shown to people that is not as its record is.
type Problem struct {
	// Path says where it is, Reason what is wrong.
	Path, Reason string
}

// ErrBroken marks what is wrong with an edit itself.
var ErrBroken = errors.New("broken edit")

// Broken marks an error as the edit's. Its text stays.
func Broken(err error) error { return broken{err} }

type broken struct{ error }

func (b broken) Is(target error) bool { return target == ErrBroken }
func (b broken) Unwrap() error        { return b.error }
