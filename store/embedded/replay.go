package embedded

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/annexapi/annex/store/journal"
)

// A replay reads and checks the next records while the caller handles those before. It reads ahead by at most this many
// batches of this many bytes, or of one record that is larger.
const readAhead, batchBytes = 4, 256 << 10

// batch is a part of a replay. Its records share data, whose memory is used again once yield has returned for all of them.
type batch struct {
	records []journal.Record
	data    []byte
}

// clear makes room for the next records, of which the first one needs least bytes.
func (b *batch) clear(least int) {
	clear(b.records) // they hold keys
	b.records, b.data = b.records[:0], b.data[:0]
	if most := max(batchBytes, least); cap(b.data) != most {
		b.data = make([]byte, 0, most)
	}
}

// add copies and checks a record, for which there must be room.
func (b *batch) add(revision uint64, data []byte) error {
	at := len(b.data)
	b.data = append(b.data, data...)
	record, err := recordIn(revision, b.data[at:])
	if err == nil {
		b.records = append(b.records, record)
	}
	return err
}

// Replay implements journal.Journal.
func (j *Journal) Replay(ctx context.Context, yield func(journal.Record) error) (compacted uint64, err error) {
	if j.closed.Load() {
		return 0, journal.ErrClosed
	}
	j.mu.Lock()
	bounds := j.bounds
	j.mu.Unlock()
	if err := j.replay(ctx, bounds, yield); err != nil {
		return 0, fmt.Errorf("replay journal %s: %w", j.dir, err)
	}
	return bounds.compacted, nil
}

func (j *Journal) replay(ctx context.Context, bounds bounds, yield func(journal.Record) error) (err error) {
	reading, stop := context.WithCancel(ctx)
	filled, empty := make(chan *batch, readAhead), make(chan *batch, readAhead)
	for range readAhead {
		empty <- &batch{}
	}
	ended := make(chan error, 1)
	go func() {
		err := j.readBatches(reading, bounds, empty, filled)
		close(filled)
		ended <- err
	}()
	defer func() {
		stop() // reading, unless it has ended
		if failed := <-ended; err == nil {
			err = failed
		}
	}()
	for b := range filled {
		for _, record := range b.records {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := yield(record); err != nil {
				return err
			}
		}
		empty <- b
	}
	return nil
}

// readBatches fills empty batches with all records, and checks that none is missing. The records before an error are passed on, too.
func (j *Journal) readBatches(ctx context.Context, bounds bounds, empty <-chan *batch, filled chan<- *batch) (err error) {
	iter, err := j.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: recordPrefix, UpperBound: recordLimit})
	if err != nil {
		return describe(err)
	}
	b := <-empty
	defer func() {
		if b != nil && len(b.records) > 0 {
			filled <- b
		}
		// Close repeats an error of the iterator.
		if closed := iter.Close(); err == nil {
			err = describe(closed)
		}
	}()
	last, next := j.last.Load(), bounds.contiguousFrom()
	for valid := iter.First(); valid; valid = iter.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		revision, ok := revisionOf(iter.Key())
		if !ok {
			return journal.Damaged(0, "%q is not a key of a record", iter.Key())
		}
		if revision >= bounds.contiguousFrom() {
			if revision != next {
				return journal.Damaged(next, "record is missing, the next one is %d", revision)
			}
			next++
		}
		data, err := iter.ValueAndErr()
		if err != nil {
			return damagedBy(revision, err)
		}
		if len(b.data)+len(data) > cap(b.data) {
			if len(b.records) > 0 {
				filled <- b
				select {
				case b = <-empty:
				case <-ctx.Done():
					b = nil
					return ctx.Err()
				}
			}
			b.clear(len(data))
		}
		if err := b.add(revision, data); err != nil {
			return err
		}
	}
	if err := iter.Error(); err != nil {
		return damagedBy(next, err)
	}
	if next <= last {
		return journal.Damaged(next, "record is missing, and so are all up to %d", last)
	}
	return nil
}
