// Package files shows objects to people: it keeps a YAML file for each object, written as a person would write it,
// and reads the file again when a person changes it.
//
//	<root>/<group>/<resource>/<namespace>/<name>.yaml
//	<root>/<group>/<resource>/_cluster/<name>.yaml
//	<root>/.annex/
//
// # The records and their projection
//
// The records are in an embedded journal below .annex. The journal alone decides which writes are durable and which
// objects exist after a restart. The YAML files are a projection of it: Run writes them when records have become
// durable. A file that cannot be written (a full disk, a directory without permission) delays no record and is tried
// again.
//
// For each file, the journal has a note with the hash of the file that the server left there and, while the file is
// being replaced, the hash of its replacement. So a file that a crash kept from being written can be distinguished
// from an edited file, and an unedited file is replaced without a question.
//
// # Edits
//
// Run also watches the tree. A file with neither of the noted hashes becomes a driver.Edit: this package knows
// neither kinds nor validation. The decider writes the object through the core, as any client does. If the object has
// changed since the file was written, only the person's changes are applied to it (see Onto of driver.Edit). A
// rejected file is left alone until it changes; meanwhile the object can be changed, and its file follows once it is
// repaired or removed.
//
// A file is never overwritten blindly: where the system can swap files, the replaced file is checked once more, and
// put back if it is an edit.
//
// Nothing here runs under a lock of the core: Append and the functions that it returns only touch memory and the
// journal.
//
// The files are described in docs/formats/files.md.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// Options tune a journal.
type Options struct {
	// Resources are the resources whose objects have files. The files of a resource are in the directory
	// Group/Resource below the root, and no other files may be in it. Records of other keys are kept, but have no
	// files.
	Resources []driver.Resource
	// Rescan is the interval at which Run walks through the whole tree for unreported edits. 0 means 10 seconds. The
	// interval is longer for a large tree, and half a second for a tree that cannot be watched.
	Rescan time.Duration
	// Logger receives problems with files, one line when each begins, and the messages of the embedded journal. Nil
	// is silent.
	Logger *slog.Logger
	// FS is the file system of the tree. Nil is the operating system's; only that can be watched.
	FS FS
	// Embedded tunes the journal below .annex. Its Logger is replaced by Logger.
	Embedded embedded.Options
}

// Journal implements journal.Recoverer. It stays the same value when it is recovered.
type Journal struct {
	root     string
	files    FS
	layout   *layout
	rescan   time.Duration
	watched  bool // the file system can report changes
	logger   *slog.Logger
	lock     io.Closer
	locked   fs.FileInfo // of the lock: a different file there means a different tree
	dirs     dirs
	records  atomic.Pointer[embedded.Journal]
	reading  sync.RWMutex // held for reading while records are read, for writing while failed ones are closed
	replayed atomic.Bool
	closed   atomic.Bool

	observed chan struct{} // closed when Run has looked at all files once
	observe  sync.Once
	wake     chan struct{} // dirty is not empty

	mu       sync.Mutex
	entries  map[string]*entry // by key
	stems    map[string]*entry // by the path of the object file without suffix
	dirty    map[*entry]bool   // entries whose files have to be compared with their records
	problems map[string]*problem
	overdue  map[*entry]string // files that could not be written, with the reasons
	late     bool              // the log has reported overdue files
}

var (
	_ journal.Recoverer = (*Journal)(nil)
	_ journal.Purger    = (*Journal)(nil)
	_ journal.Shelf     = (*Journal)(nil)
	_ driver.Edited     = (*Journal)(nil)
)

const (
	statePath  = private + "/state"
	lockPath   = private + "/LOCK"
	tempDir    = private + "/tmp"
	recordsDir = private + "/journal"
)

// Open opens the tree in the directory root and the journal in it, and creates both if they do not exist. Object
// files are neither read nor written before Run. A tree in the first format is converted.
//
// The error matches journal.ErrLocked if the tree is open already, and journal.ErrDamaged if the content of .annex is
// broken. Open changes no file that people wrote.
func Open(root string, options Options) (*Journal, error) {
	j, err := open(root, options)
	if err != nil {
		return nil, fmt.Errorf("open files %s: %w", root, err)
	}
	return j, nil
}

func open(root string, options Options) (_ *Journal, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	layout, err := newLayout(options.Resources)
	if err != nil {
		return nil, err
	}
	j := &Journal{
		root:     root,
		files:    options.FS,
		layout:   layout,
		rescan:   options.Rescan,
		logger:   options.Logger,
		observed: make(chan struct{}),
		wake:     make(chan struct{}, 1),
		entries:  map[string]*entry{},
		stems:    map[string]*entry{},
		dirty:    map[*entry]bool{},
		problems: map[string]*problem{},
		overdue:  map[*entry]string{},
	}
	if j.logger == nil {
		j.logger = slog.New(slog.DiscardHandler)
	}
	if j.rescan <= 0 {
		j.rescan = 10 * time.Second
	}
	if j.files == nil {
		if err := makeRoot(root); err != nil {
			return nil, err
		}
		j.files, j.watched = disk{root}, true
	}
	if err := j.mkdir(tempDir); err != nil {
		return nil, err
	}
	if j.lock, err = j.files.Lock(lockPath); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = j.lock.Close()
		}
	}()
	if j.locked, err = j.files.Stat(lockPath); err != nil {
		return nil, err
	}
	options.Embedded.Logger = options.Logger
	records, err := j.openRecords(options.Embedded)
	if err != nil {
		return nil, err
	}
	j.records.Store(records)
	if err := errors.Join(j.readNotes(), j.clean()); err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return j, nil
}

// openRecords opens the journal, or creates it: empty, or from the records of the first format.
func (j *Journal) openRecords(options embedded.Options) (*embedded.Journal, error) {
	dir := j.path(recordsDir)
	format, err := j.format()
	if err != nil {
		return nil, err
	}
	if format == 1 {
		if err := j.takeOver(dir, options); err != nil {
			return nil, fmt.Errorf("convert the records of format 1: %w", err)
		}
		if err := j.setFormat(); err != nil {
			return nil, err
		}
	}
	if format == formatVersion {
		if _, err := j.files.Stat(recordsDir); errors.Is(err, fs.ErrNotExist) {
			return nil, journal.Damaged(
				0,
				"%s is missing: restore it from a copy, or remove the whole directory %s to start again from the files",
				dir,
				j.path(private),
			)
		}
	}
	records, err := embedded.Open(dir, options)
	if err != nil {
		return nil, err
	}
	if format == 0 {
		err = j.setFormat()
	}
	if err == nil {
		err = j.removeFormat1()
	}
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return records, nil
}

// Identity returns the random identity of this journal. It is chosen when the journal is created, and stays the same
// if the directory is moved.
func (j *Journal) Identity() string { return j.records.Load().Identity() }

// DiskUsage returns the size of the records on disk in bytes. Object files do not count.
func (j *Journal) DiskUsage() uint64 { return j.records.Load().DiskUsage() }

// path returns the operating system's path of a file.
func (j *Journal) path(name string) string { return filepath.Join(j.root, filepath.FromSlash(name)) }

// Replay implements journal.Journal.
func (j *Journal) Replay(ctx context.Context, yield func(journal.Record) error) (compacted uint64, err error) {
	compacted, err = j.records.Load().Replay(ctx, func(r journal.Record) error {
		j.note(r.Key, r.Revision, r.Deleted)
		return yield(r)
	})
	if err == nil {
		j.replayed.Store(true)
	}
	return compacted, err
}

// Append implements journal.Journal. The object file is written by Run, later.
func (j *Journal) Append(record journal.Record) (wait func() error, err error) {
	durable, err := j.records.Load().Append(record)
	if err != nil {
		return nil, err
	}
	// The function must not keep the value alive.
	key, revision, deleted := record.Key, record.Revision, record.Deleted
	return func() error {
		if err := durable(); err != nil {
			return err
		}
		j.note(key, revision, deleted)
		return nil
	}, nil
}

// Read implements journal.Journal.
func (j *Journal) Read(revision uint64) (journal.Record, error) {
	j.reading.RLock()
	defer j.reading.RUnlock()
	return j.records.Load().Read(revision)
}

// Trim implements journal.Journal.
func (j *Journal) Trim(compacted uint64, drop []uint64) error {
	return j.records.Load().Trim(compacted, drop)
}

// TrimAndShelve implements journal.Shelf.
func (j *Journal) TrimAndShelve(compacted uint64, drop []uint64, edits []journal.ShelfEdit) error {
	return j.records.Load().TrimAndShelve(compacted, drop, edits)
}

// ReadShelf implements journal.Shelf.
func (j *Journal) ReadShelf(key string) ([]byte, error) { return j.records.Load().ReadShelf(key) }

// ScanShelf implements journal.Shelf.
func (j *Journal) ScanShelf(from, below string, backwards bool, yield func(key string, value []byte) bool) error {
	return j.records.Load().ScanShelf(from, below, backwards, yield)
}

// Purge implements journal.Purger.
func (j *Journal) Purge(ctx context.Context) error { return j.records.Load().Purge(ctx) }

// Err implements journal.Journal. Files that cannot be written are not an error here; see Overdue.
func (j *Journal) Err() error { return j.records.Load().Err() }

// Recover implements journal.Recoverer.
func (j *Journal) Recover() (journal.Journal, error) {
	failed := j.records.Load()
	next, err := failed.Recover()
	if err != nil {
		return nil, err
	}
	j.records.Store(next.(*embedded.Journal))
	j.reading.Lock()
	defer j.reading.Unlock()
	_ = failed.Close() // its failure is known
	return j, nil
}

// Close implements journal.Journal. Run must have ended.
func (j *Journal) Close() error {
	if j.closed.Swap(true) {
		return nil
	}
	j.reading.Lock()
	defer j.reading.Unlock()
	if err := errors.Join(j.records.Load().Close(), j.lock.Close()); err != nil {
		return fmt.Errorf("close files %s: %w", j.root, err)
	}
	return nil
}

// note records that a record is durable, so that its object file follows. It only touches memory, because writers
// wait for it.
func (j *Journal) note(key string, revision uint64, deleted bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[key]
	if e == nil {
		at, placed := j.layout.place(key)
		if !placed {
			return
		}
		e = &entry{key: key, place: at}
		j.know(e)
	}
	if revision <= e.newest {
		return
	}
	e.newest, e.deleted = revision, deleted
	j.soil(e)
}

// soil marks the file of an entry for comparison with its record. It needs mu.
func (j *Journal) soil(e *entry) {
	j.dirty[e] = true
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// know adds an entry. It needs mu.
func (j *Journal) know(e *entry) { j.entries[e.key], j.stems[e.place.stem] = e, e }

// forget is the reverse of know.
func (j *Journal) forget(e *entry) {
	delete(j.entries, e.key)
	delete(j.stems, e.place.stem)
}
