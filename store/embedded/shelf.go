package embedded

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/annexapi/annex/store/journal"
)

// shelfPrefix begins the keys of the shelf. Like notes, they lie between the bounds of a purge.
var shelfPrefix = []byte("k/")

func shelfKey(key string) []byte {
	return append(append(make([]byte, 0, len(shelfPrefix)+len(key)), shelfPrefix...), key...)
}

// shelve adds changes of the shelf to a batch.
func (j *Journal) shelve(batch *pebble.Batch, edits []journal.ShelfEdit) error {
	if len(edits) == 0 {
		return nil
	}
	for _, edit := range edits {
		var err error
		if edit.Value == nil {
			err = batch.Delete(shelfKey(edit.Key), nil)
		} else {
			err = batch.Set(shelfKey(edit.Key), edit.Value, nil)
		}
		if err != nil {
			return fmt.Errorf("shelve in journal %s: %w", j.dir, describe(err))
		}
	}
	return j.raise(batch)
}

// ReadShelf implements journal.Shelf.
func (j *Journal) ReadShelf(key string) ([]byte, error) {
	if j.closed.Load() {
		return nil, journal.ErrClosed
	}
	value, err := get(j.db, shelfKey(key))
	if err != nil {
		return nil, fmt.Errorf("read the shelf of journal %s: %w", j.dir, err)
	}
	return value, nil
}

// ScanShelf implements journal.Shelf.
func (j *Journal) ScanShelf(from, below string, backwards bool, yield func(key string, value []byte) bool) error {
	if j.closed.Load() {
		return journal.ErrClosed
	}
	if err := j.scanShelf(from, below, backwards, yield); err != nil {
		return fmt.Errorf("read the shelf of journal %s: %w", j.dir, describe(err))
	}
	return nil
}

func (j *Journal) scanShelf(from, below string, backwards bool, yield func(key string, value []byte) bool) (err error) {
	iter, err := j.db.NewIter(&pebble.IterOptions{LowerBound: shelfKey(from), UpperBound: shelfKey(below)})
	if err != nil {
		return err
	}
	defer func() {
		if closed := iter.Close(); err == nil {
			err = closed
		}
	}()
	first, next := iter.First, iter.Next
	if backwards {
		first, next = iter.Last, iter.Prev
	}
	for valid := first(); valid; valid = next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		if !yield(string(iter.Key()[len(shelfPrefix):]), value) {
			return nil
		}
	}
	return iter.Error()
}
