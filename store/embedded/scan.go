package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sort"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// Scan reads the journal in dir, which must exist, without changing it. It passes every sound record to yield, in
// rising revision order, and every unreadable or missing part to damaged, and continues behind it. It returns the
// compacted revision. An error means that Scan cannot continue; it matches journal.ErrLocked if the journal is open,
// and journal.ErrDamaged if the journal is so broken that no record can be reached.
func Scan(
	ctx context.Context,
	dir string,
	options Options,
	yield func(journal.Record) error,
	damaged func(*journal.Damage),
) (compacted uint64, err error) {
	compacted, err = scan(ctx, dir, options, yield, damaged)
	if err != nil {
		return 0, fmt.Errorf("scan journal %s: %w", dir, err)
	}
	return compacted, nil
}

func scan(
	ctx context.Context,
	dir string,
	options Options,
	yield func(journal.Record) error,
	damaged func(*journal.Damage),
) (uint64, error) {
	files := options.FS
	if files == nil {
		files = vfs.Default
		var err error
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return 0, err
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return 0, err
		}
	}
	desc, err := pebble.Peek(dir, files)
	if err != nil {
		return 0, describe(err)
	}
	lock, err := lockDir(files, dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Close() }()
	watermark, _, err := openWatermark(files, dir, nil)
	if err != nil {
		return 0, err
	}
	if !desc.Exists {
		return 0, errors.Join(watermark.checkRevision(0), fmt.Errorf("the database does not exist: %w", fs.ErrNotExist))
	}
	if err := watermark.checkManifest(desc.ManifestFilename); err != nil {
		damaged(&journal.Damage{Err: err})
	}
	db, err := pebble.Open(dir, &pebble.Options{
		FS:            files,
		Lock:          lock,
		ReadOnly:      true,
		Logger:        databaseLogger{logger: slog.New(slog.DiscardHandler), fail: func(error) {}},
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		return 0, describe(err)
	}
	s := &scanner{db: db, yield: yield, damaged: damaged}
	compacted, err := s.run(ctx, watermark)
	if closed := db.Close(); err == nil {
		err = describe(closed)
	}
	return compacted, err
}

type scanner struct {
	db      *pebble.DB
	yield   func(journal.Record) error
	damaged func(*journal.Damage)

	bounds bounds
	next   uint64   // no lower revision is missing without having been reported
	starts []uint64 // the first revisions of tables
}

func (s *scanner) run(ctx context.Context, watermark *watermark) (uint64, error) {
	if err := s.metadata(); err != nil {
		return 0, err
	}
	for from := uint64(0); ; {
		broken, err := s.read(ctx, from)
		if err != nil {
			return 0, err
		}
		if broken == nil {
			break
		}
		if len(s.starts) > 0 {
			broken.First = max(broken.First, s.starts[0])
		}
		resume, ok := s.behind(broken.First)
		if ok {
			broken.Last = resume - 1
		} else {
			broken.Last = max(broken.First, watermark.written.revision, s.bounds.dropped)
		}
		s.damaged(broken)
		s.next = broken.Last + 1
		if !ok {
			break
		}
		from = resume
	}
	// Revisions after the last entry may have been acknowledged, too.
	if last := max(watermark.written.revision, s.bounds.dropped); s.next <= last && s.next >= s.bounds.contiguousFrom() {
		s.missing(last)
	}
	return s.bounds.compacted, nil
}

// metadata reads the format and the bounds, which define the records that must exist.
func (s *scanner) metadata() error {
	data, err := get(s.db, formatKey)
	switch {
	case err != nil:
		s.damaged(&journal.Damage{Err: fmt.Errorf("the journal's format: %w", err)})
	case data == nil:
		s.damaged(&journal.Damage{Err: journal.Damaged(0, "the journal has no format")})
	default:
		known, err := decodeFormat(data)
		if err != nil {
			s.damaged(&journal.Damage{Err: err})
		} else if err := known.check(); err != nil {
			return err
		}
	}
	if data, err = get(s.db, boundsKey); err == nil && data != nil {
		s.bounds, err = decodeBounds(data)
	}
	if err != nil {
		s.damaged(&journal.Damage{Err: fmt.Errorf("the journal's bounds: %w", err)})
	}
	s.next = s.bounds.contiguousFrom()

	levels, err := s.db.SSTables()
	if err != nil {
		return describe(err)
	}
	for _, level := range levels {
		for _, table := range level {
			if revision, ok := revisionOf(table.Smallest.UserKey); ok {
				s.starts = append(s.starts, revision)
			}
		}
	}
	sort.Slice(s.starts, func(i, j int) bool { return s.starts[i] < s.starts[j] })
	return nil
}

func (s *scanner) iterate() (*pebble.Iterator, error) {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: recordPrefix, UpperBound: recordLimit})
	return iter, describe(err)
}

// read yields the records from a revision on. It stops at an unreachable entry, which it returns as damage.
func (s *scanner) read(ctx context.Context, from uint64) (*journal.Damage, error) {
	iter, err := s.iterate()
	if err != nil {
		return nil, err
	}
	defer func() { _ = iter.Close() }() // its error repeats an error of the iterator
	at := from
	for valid := iter.SeekGE(recordKey(from)); valid; valid = iter.Next() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		revision, ok := revisionOf(iter.Key())
		if !ok {
			s.damaged(&journal.Damage{Err: journal.Damaged(0, "%q is not a key of a record", iter.Key())})
			continue
		}
		if s.next >= s.bounds.contiguousFrom() && s.next < revision && revision > s.bounds.contiguousFrom() {
			s.missing(revision - 1)
		}
		at = revision + 1
		if revision >= s.bounds.contiguousFrom() {
			s.next = at
		}
		data, err := iter.ValueAndErr()
		if err != nil {
			s.damaged(&journal.Damage{First: revision, Last: revision, Err: damagedBy(revision, err)})
			continue
		}
		record, err := decodeRecord(revision, data)
		if err != nil {
			s.damaged(&journal.Damage{First: revision, Last: revision, Err: err})
			continue
		}
		if err := s.yield(record); err != nil {
			return nil, err
		}
	}
	if err := iter.Error(); err != nil {
		return &journal.Damage{First: at, Last: at, Err: describe(err)}, nil
	}
	return nil, nil
}

// missing reports that all records from next on are missing.
func (s *scanner) missing(last uint64) {
	s.damaged(&journal.Damage{First: s.next, Last: last, Err: journal.Damaged(0, "missing")})
	s.next = last + 1
}

// behind returns the lowest readable revision above one at which nothing can be read. It looks further and further
// ahead, and at the beginnings of tables. A readable part in the midst of an unreadable one may be missed.
func (s *scanner) behind(revision uint64) (uint64, bool) {
	bad, good, found := revision, uint64(0), false
	for step := uint64(1); step < 1<<40; step *= 2 {
		if s.readable(revision + step) {
			good, found = revision+step, true
			break
		}
		bad = revision + step
	}
	for _, start := range s.starts {
		if start > revision && (!found || start < good) && s.readable(start) {
			good, found = start, true
			bad = min(bad, start-1)
			break
		}
	}
	if !found {
		return 0, false
	}
	for bad+1 < good {
		middle := bad + (good-bad)/2
		if s.readable(middle) {
			good = middle
		} else {
			bad = middle
		}
	}
	return good, true
}

// readable reports whether any entry can be read from a revision on.
func (s *scanner) readable(revision uint64) bool {
	iter, err := s.iterate()
	if err != nil {
		return false
	}
	valid := iter.SeekGE(recordKey(revision))
	return iter.Close() == nil && valid
}

// LastRevision returns the highest revision that the journal in dir ever acknowledged, as far as it can be
// determined. It reads the whole journal, even if it is damaged; an error means that no revision could be determined.
func LastRevision(ctx context.Context, dir string) (uint64, error) {
	last := uint64(0)
	compacted, err := Scan(ctx, dir, Options{}, func(r journal.Record) error {
		last = max(last, r.Revision)
		return nil
	}, func(d *journal.Damage) { last = max(last, d.Last) })
	if err == nil {
		return max(last, compacted), nil
	}
	if watermark, found, failed := openWatermark(vfs.Default, dir, nil); failed == nil && found {
		return max(last, watermark.written.revision), nil
	}
	return last, err
}
