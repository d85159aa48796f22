package embedded

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/annexapi/annex/store/journal"
)

// Note is a named value that the owner of a journal keeps beside the records, for example state derived from them.
// The core never sees it.
type Note struct {
	Name string
	// Value must not be changed by either side once it has been passed.
	Value []byte
}

var (
	notePrefix = []byte("n/")
	noteLimit  = []byte("n0")
)

func noteKey(name string) []byte {
	return append(append(make([]byte, 0, len(notePrefix)+len(name)), notePrefix...), name...)
}

// SetNotes replaces notes atomically; a note without a value is removed. The notes, and everything appended before,
// are durable on return. It may be called concurrently with everything but Close. An error means that the journal has
// failed, and Err returns the same error.
func (j *Journal) SetNotes(notes []Note) error {
	if err := j.Err(); err != nil {
		return err
	}
	batch := j.db.NewBatch()
	defer func() { _ = batch.Close() }()
	for _, n := range notes {
		var err error
		if n.Value == nil {
			err = batch.Delete(noteKey(n.Name), nil)
		} else {
			err = batch.Set(noteKey(n.Name), n.Value, nil)
		}
		if err != nil {
			return fmt.Errorf("set notes in journal %s: %w", j.dir, describe(err))
		}
	}
	if err := j.db.Apply(batch, pebble.Sync); err != nil {
		j.disk.fail(err)
	}
	return j.Err()
}

// Note returns the value of a note, nil if there is none. It may be called concurrently with everything but Close.
func (j *Journal) Note(name string) ([]byte, error) {
	if j.closed.Load() {
		return nil, journal.ErrClosed
	}
	value, err := get(j.db, noteKey(name))
	if err != nil {
		return nil, fmt.Errorf("read note %q of journal %s: %w", name, j.dir, err)
	}
	return value, nil
}

// Notes calls yield for every note whose name begins with prefix, in the order of names. It stops at an error of
// yield and returns that error.
func (j *Journal) Notes(prefix string, yield func(Note) error) (err error) {
	if j.closed.Load() {
		return journal.ErrClosed
	}
	lower := noteKey(prefix)
	iter, err := j.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: noteLimit})
	if err != nil {
		return fmt.Errorf("read notes of journal %s: %w", j.dir, describe(err))
	}
	defer func() {
		if closed := iter.Close(); err == nil && closed != nil {
			err = fmt.Errorf("read notes of journal %s: %w", j.dir, describe(closed))
		}
	}()
	for valid := iter.First(); valid; valid = iter.Next() {
		name := string(iter.Key()[len(notePrefix):])
		if len(name) < len(prefix) || name[:len(prefix)] != prefix {
			break
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read notes of journal %s: %w", j.dir, describe(err))
		}
		if err := yield(Note{Name: name, Value: append(make([]byte, 0, len(value)), value...)}); err != nil {
			return err
		}
	}
	return nil
}
