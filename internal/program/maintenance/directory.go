package maintenance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// OpenJournal opens the journal in a directory, and creates it if it does not exist.
type OpenJournal func(dir string) (journal.Journal, error)

// A restore fills a temporary directory beside the storage's directory, with one of these suffixes, and renames it.
const (
	// unfinished is the suffix while the directory is being written. It remains after an interrupted restore.
	unfinished = ".restoring"
	// finished is the suffix of a complete directory that only has to be renamed.
	finished = ".restored"
)

// FinishRestore renames a directory that was complete when a restore was interrupted. Without one it does nothing.
func FinishRestore(dir string) error {
	dir, err := named(dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch err := os.Rename(dir+finished, dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("finish the restore of %s: %w", dir, err)
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// named returns a path to which a suffix can be appended: dir/ and . have no such form.
func named(dir string) (string, error) {
	dir = filepath.Clean(dir)
	if base := filepath.Base(dir); base != "." && base != ".." {
		return dir, nil
	}
	return filepath.Abs(dir)
}

// IsEmpty reports whether a directory is empty or does not exist.
func IsEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

// FillDirectory writes values into a new journal, as objects created above a revision, and verifies it. It builds
// the journal beside the directory, and renames it when it is complete and durable, so that an interrupted restore
// leaves the previous storage as it was. With replace, a previous storage is moved aside to a name with the time;
// otherwise the directory must be empty or missing.
func FillDirectory(
	ctx context.Context,
	open OpenJournal,
	dir string,
	base uint64,
	values iter.Seq2[store.Value, error],
	replace bool,
) (Copied, error) {
	dir, err := named(dir)
	if err != nil {
		return Copied{}, err
	}
	if err := FinishRestore(dir); err != nil {
		return Copied{}, err
	}
	empty, err := IsEmpty(dir)
	if err != nil {
		return Copied{}, err
	}
	if !empty && !replace {
		return Copied{}, fmt.Errorf("%s: %w", dir, ErrNotEmpty)
	}
	building := dir + unfinished
	for _, leftover := range []string{building, dir + finished} {
		if err := os.RemoveAll(leftover); err != nil {
			return Copied{}, err
		}
	}
	done, err := fill(ctx, open, building, base, values)
	if err != nil {
		return Copied{}, errors.Join(err, os.RemoveAll(building))
	}
	if err := atomicfile.SyncDir(building); err != nil {
		return Copied{}, err
	}
	if err := os.Rename(building, dir+finished); err != nil {
		return Copied{}, err
	}
	if err := atomicfile.SyncDir(filepath.Dir(dir)); err != nil {
		return Copied{}, err
	}
	if done.Aside, err = makeWay(dir, empty); err != nil {
		// Otherwise FinishRestore would rename it once the directory is gone.
		return Copied{}, errors.Join(err, os.RemoveAll(dir+finished))
	}
	if err := FinishRestore(dir); err != nil {
		return Copied{}, err
	}
	return done, nil
}

// makeWay removes an empty directory, and moves any other aside.
func makeWay(dir string, empty bool) (aside string, err error) {
	if !empty {
		aside = dir + "." + time.Now().UTC().Format("20060102T150405.000Z")
		return aside, os.Rename(dir, aside)
	}
	if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return "", nil
}

func fill(ctx context.Context, open OpenJournal, dir string, base uint64, values iter.Seq2[store.Value, error]) (done Copied, err error) {
	j, err := open(dir)
	if err != nil {
		return Copied{}, err
	}
	wrote := tally{sum: sha256.New()}
	done.Revision, err = mvcc.Fill(ctx, j, base, func(yield func(store.Value, error) bool) {
		for v, err := range values {
			if err == nil {
				wrote.add(v.Key, v.Data, v.Expires)
			}
			if !yield(v, err) {
				return
			}
		}
	})
	if err := errors.Join(err, j.Close()); err != nil {
		return Copied{}, err
	}
	if j, err = open(dir); err != nil {
		return Copied{}, err
	}
	read := tally{sum: sha256.New()}
	_, err = j.Replay(ctx, func(r journal.Record) error {
		read.add(r.Key, r.Value, r.Expires)
		return nil
	})
	if err := errors.Join(err, j.Close()); err != nil {
		return Copied{}, fmt.Errorf("read again: %w", err)
	}
	if !read.equal(wrote) {
		return Copied{}, fmt.Errorf(
			"read %d objects with checksum %x, but wrote %d with %x",
			read.objects,
			read.sum.Sum(nil),
			wrote.objects,
			wrote.sum.Sum(nil),
		)
	}
	done.Objects, done.Written = wrote.objects, wrote.objects
	return done, nil
}

// tally is the number of objects and their checksum in order.
type tally struct {
	objects int64
	sum     hash.Hash
}

func (t *tally) add(key string, data []byte, expires time.Time) {
	t.objects++
	var at int64
	if !expires.IsZero() {
		at = expires.UnixMicro()
	}
	head := binary.BigEndian.AppendUint64(nil, uint64(len(key)))
	head = binary.BigEndian.AppendUint64(head, uint64(len(data)))
	head = binary.BigEndian.AppendUint64(head, uint64(at))
	t.sum.Write(append(head, key...))
	t.sum.Write(data)
}

func (t *tally) equal(other tally) bool {
	return t.objects == other.objects && string(t.sum.Sum(nil)) == string(other.sum.Sum(nil))
}
