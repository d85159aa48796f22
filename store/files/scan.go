package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/annexapi/annex/store/journal"
)

// StateFile is the file below the root without which there is no journal.
const StateFile = statePath

// Scan reads the journal in the directory root, which must exist, without changing
// it. It gives every sound record to yield, in rising revision order, and every side
// file that cannot be read to damaged, and goes on behind it. It returns the
// compacted revision, to which all that was written before belongs. An error says
// that no more can be read; it matches journal.ErrLocked if the journal is open.
// Object files are not read.
func Scan(ctx context.Context, root string, yield func(journal.Record) error, damaged func(*journal.Damage)) (compacted uint64, err error) {
	if compacted, err = scan(ctx, root, yield, damaged); err != nil {
		return 0, fmt.Errorf("scan files %s: %w", root, err)
	}
	return compacted, nil
}

// LastRevision returns a revision that none in the journal in root is above. The
// journal must not be open.
func LastRevision(root string) (uint64, error) {
	j := &Journal{root: root, files: disk{root}}
	if fresh, err := j.readState(); err != nil || fresh {
		return 0, err
	}
	return j.state.Ceiling, nil
}

func scan(ctx context.Context, root string, yield func(journal.Record) error, damaged func(*journal.Damage)) (uint64, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return 0, err
	}
	j := &Journal{root: root, files: disk{root}}
	if _, err := j.files.Stat(statePath); err != nil {
		return 0, err
	}
	lock, err := j.files.Lock(lockPath)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Close() }()
	if _, err := j.readState(); err != nil {
		if !errors.Is(err, journal.ErrDamaged) {
			return 0, err
		}
		damaged(&journal.Damage{Err: err})
	}
	paths, err := j.sidePaths(recordsDir, nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var records []journal.Record
	highest := j.state.Ceiling
	for _, name := range paths {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r, err := j.readRecord(name)
		if err != nil {
			damaged(&journal.Damage{First: r.Revision, Last: r.Revision, Err: err})
			continue
		}
		highest = max(highest, r.Revision)
		if !r.Deleted {
			records = append(records, r.Record)
		}
	}
	slices.SortFunc(records, func(a, b journal.Record) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, r := range records {
		if err := yield(r); err != nil {
			return 0, err
		}
	}
	return highest, nil
}
