package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// StateFile is the file below the root that every tree has.
const StateFile = statePath

// Scan reads the records of the tree in root, which must exist, without changing anything. It calls embedded.Scan for
// them, and does not read object files.
func Scan(
	ctx context.Context,
	root string,
	options embedded.Options,
	yield func(journal.Record) error,
	damaged func(*journal.Damage),
) (compacted uint64, err error) {
	j := &Journal{root: root, files: disk{root}}
	version, err := j.format()
	if err == nil && version == 1 {
		err = errors.New("its records are in format 1: start the server, which converts them")
	}
	if err != nil {
		return 0, fmt.Errorf("scan files %s: %w", root, err)
	}
	return embedded.Scan(ctx, j.path(recordsDir), options, yield, damaged)
}

// LastRevision returns an upper bound of the revisions in the tree in root. The tree must not be open.
func LastRevision(ctx context.Context, root string) (uint64, error) {
	j := &Journal{root: root, files: disk{root}}
	switch version, err := j.format(); {
	case err != nil:
		return 0, err
	case version == 1:
		state, err := j.stateV1()
		return state.Ceiling, err
	}
	if _, err := j.files.Stat(recordsDir); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return embedded.LastRevision(ctx, filepath.Join(root, filepath.FromSlash(recordsDir)))
}
