package files

import (
	"errors"
)

// Proposal is what a person has made of the file of one object.
type Proposal struct {
	// Key is that of the object, and Path the file's, for people.
	Key  string
	Path string
	// Document is what the file says, in JSON and with the namespace that its
	// directory stands for. It is nil if the file was removed.
	Document []byte

	name     string
	resource *Resource
	base     []byte // what the file said before; nil if that is not known
	hash     digest
	stamp    stamp
	more     bool // the document says more than what people write
}

// Deleted reports whether the file was removed.
func (p *Proposal) Deleted() bool { return p.Document == nil }

// Onto returns the document to write where the object is stored as JSON: the person's
// where the file said what the object says when it was edited. If the object has changed
// since, only what the person changed is different from it. Where both changed the same
// field, the person's stands; a list is one field. A file in another version than the
// object counts as a whole.
func (p *Proposal) Onto(stored []byte) []byte {
	shown, _, ok := visible(stored, p.resource.Status)
	if !ok || p.base == nil {
		return p.Document
	}
	merged, ok := mergeEdit(p.base, p.Document, jsonObject(shown))
	if !ok {
		return p.Document
	}
	return merged
}

// ErrBroken marks what is wrong with a file itself.
var ErrBroken = errors.New("broken file")

// brokenError is a reason that is for people to see, without the mark's own text.
type brokenError struct{ error }

func (e brokenError) Is(target error) bool { return target == ErrBroken }
func (e brokenError) Unwrap() error        { return e.error }

// Broken marks an error as the file's.
func Broken(err error) error { return brokenError{err} }
