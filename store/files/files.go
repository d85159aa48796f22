// Package files is a journal for people: one YAML file for each object, written as
// a person would write it, and read again when a person changes it.
//
//	<root>/<group>/<resource>/<namespace>/<name>.yaml
//	<root>/<group>/<resource>/_cluster/<name>.yaml
//	<root>/.annex/
//
// What the API needs beyond that is in a side file for each key, below .annex. It
// is the complete record: a side file is written before its object file, and is
// what makes a revision durable. It also holds the hash of the object file, so
// that a file edited from outside can be told from one that the server wrote.
//
// # Durability
//
// One goroutine commits. It takes all records that wait, writes and syncs their
// side files and object files under temporary names, moves the side files into
// place, syncs their directories, and then does the same with the object files. If
// the process dies in between, the hashes tell which object files are still to be
// written. Any failure makes the journal read-only; after a disk that was full, Recover
// goes on.
//
// Where the system can swap files, an object file is never overwritten: it is taken
// out of its place first, and comes back if it was edited since the last look.
//
// Superseded records are kept in memory only. After a restart, everything up to the
// last revision is compacted. Revisions never fall: they are given out of blocks
// that are reserved on disk.
//
// # Edits
//
// Run watches the tree. What differs from what the side files say becomes a
// Proposal: this package knows neither kinds nor validation. Whoever decides on it
// writes the object through the core, with the proposal in the context, and the
// record that comes out of that is written beside the person's file, which stays as
// it is if it says the same. A file that was refused is left alone until it changes,
// and so is the object that it belongs to: Permit refuses all other writes to it,
// so that no edit is overwritten.
//
// The files are described in docs/formats/files.md.
package files

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// Options tune a journal.
type Options struct {
	// Resources say where object files are. Records of other keys are kept, but not
	// for people to see.
	Resources []Resource
	// Rescan is how often Run looks through the whole tree for edits that it was not
	// told of. 0 means 10 seconds. A large tree is looked through less often, and one
	// that cannot be watched twice a second.
	Rescan time.Duration
	// Logger receives what is wrong with files, a line when it becomes so. Nil is
	// silent.
	Logger *slog.Logger
	// FS is the file system. Nil is the operating system's; only that can be watched.
	FS FS
}

// Journal implements journal.Guarded and journal.Recoverer.
type Journal struct {
	root   string
	files  FS
	layout *layout
	rescan time.Duration
	// watched says that the file system can tell of changes.
	watched  bool
	logger   *slog.Logger
	lock     io.Closer
	locked   fs.FileInfo // of the lock: another file there is another journal
	loaded   []journal.Record
	identity string

	mu       sync.Mutex
	records  map[uint64]journal.Record
	most     int               // records ever, since that map was made
	entries  map[string]*entry // by key
	stems    map[string]*entry // by the path of the object file without suffix
	queued   map[string]int    // records of a key that are not committed yet
	problems map[string]*problem
	last     uint64 // that the next record has to follow, 0 if it may be any
	// committed is the last revision that is known to be durable, or what last was made.
	committed uint64
	// compacted is what Trim made it.
	compacted uint64
	queue     []*operation
	failure   error
	failed    []*operation // those in whose midst that was
	closed    bool
	permitted *Proposal // for the record that is appended next

	state    state // the committer's, and that of Open, Trim and Close around it
	work     chan struct{}
	stop     chan struct{}
	stopped  chan struct{}
	dirs     map[string]bool // that exist; the committer's
	edited   chan string     // paths that Run should look at
	observed chan struct{}   // closed when Run has looked at all files once
	observe  sync.Once
}

// entry is what is known of a key that exists.
type entry struct {
	key      string
	revision uint64
	place    place
	placed   bool
	object   object
	// stamp is that of the object file when it was last known to be as object says.
	stamp stamp
	// settled says that the object file has been as object says, so that one that is
	// not was edited. Else a crash may have come in between.
	settled bool
	// behind says that the object file is still as it was before the record.
	behind bool
	// touched says that the last commit has found an edit: it comes next.
	touched bool
}

// path is that of the object file; empty if there is none.
func (e *entry) path() string {
	if !e.placed || e.object.Suffix == "" {
		return ""
	}
	return e.place.stem + e.object.Suffix
}

var (
	_ journal.Guarded   = (*Journal)(nil)
	_ journal.Recoverer = (*Journal)(nil)
)

const (
	statePath   = private + "/state"
	lockPath    = private + "/LOCK"
	tempDir     = private + "/tmp"
	recordsDir  = private + "/records"
	revisionRun = 4096 // revisions reserved at a time
)

// Open opens the journal in the directory root, and makes both if they do not
// exist. Object files that are there already are looked at by Run.
//
// The error matches journal.ErrLocked if the journal is open already, and
// journal.ErrDamaged if a side file is broken; it names the file. Nothing that
// people wrote is changed.
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
		records:  map[uint64]journal.Record{},
		entries:  map[string]*entry{},
		stems:    map[string]*entry{},
		queued:   map[string]int{},
		problems: map[string]*problem{},
		work:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
		dirs:     map[string]bool{".": true},
		edited:   make(chan string, 1024),
		observed: make(chan struct{}),
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
	j.files = refusing{j.files}
	if err := j.mkdir(private); err != nil {
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
	if err := j.load(); err != nil {
		return nil, err
	}
	go j.commitAll()
	return j, nil
}

// load reads everything but the object files.
func (j *Journal) load() error {
	fresh, err := j.readState()
	if err != nil {
		return err
	}
	for _, dir := range []string{tempDir, recordsDir} {
		if err := j.mkdir(dir); err != nil {
			return err
		}
	}
	unfinished, err := j.readRecords()
	if err != nil {
		return err
	}
	if fresh && len(j.records) > 0 {
		return journal.Damaged(0, "%s is missing: put it back from a copy, or revisions would be given out again", j.path(statePath))
	}
	if err := j.clean(unfinished); err != nil {
		return err
	}
	// The ceiling is higher than any revision that was given out; whoever saw it last
	// before a crash sees higher ones from now on.
	j.last, j.committed, j.compacted = j.state.Ceiling, j.state.Ceiling, j.state.Ceiling
	if fresh {
		var id [16]byte
		if _, err := rand.Read(id[:]); err != nil {
			return err
		}
		j.state.Identity = hex.EncodeToString(id[:])
	}
	j.identity = j.state.Identity
	return j.reserve(j.last)
}

// readState reads the state; fresh says that there is none.
func (j *Journal) readState() (fresh bool, err error) {
	data, err := j.read(statePath, 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err == nil {
		j.state, err = decodeState(data)
	}
	if newer := (newerFormatError{}); errors.As(err, &newer) {
		return false, fmt.Errorf("%s: %w", j.path(statePath), newer)
	}
	if err != nil {
		return false, journal.Damaged(0, "%s: %w", j.path(statePath), err)
	}
	return false, nil
}

// reserve makes revisions above last available, durably.
func (j *Journal) reserve(last uint64) error {
	next := j.state
	next.Ceiling, next.Finished, next.Closed = last+revisionRun, j.finished(last), false
	return j.writeState(next)
}

// finished returns a revision up to which all object files have been written, if
// nothing up to last is being written. After a crash that is no more than was known
// before, until everything has been looked at: there may be another crash.
func (j *Journal) finished(last uint64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		if !e.settled || e.behind {
			return j.state.Finished
		}
	}
	return last
}

func (j *Journal) writeState(next state) error {
	data, err := next.encode()
	if err != nil {
		return err
	}
	const temp = tempDir + "/state"
	if _, err := j.write(temp, data); err != nil {
		return err
	}
	if err := j.files.Rename(temp, statePath); err != nil {
		return err
	}
	if err := j.files.SyncDir(private); err != nil {
		return err
	}
	j.state = next
	return nil
}

// readRecords reads all side files. It returns deletions that may not be finished.
func (j *Journal) readRecords() (unfinished []sideRecord, err error) {
	paths, err := j.sidePaths(recordsDir, nil)
	if err != nil {
		return nil, err
	}
	read := make([]sideRecord, len(paths))
	err = parallel(len(paths), func(i int) (err error) {
		read[i], err = j.readRecord(paths[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range read {
		if other, used := j.records[r.Revision]; used {
			return nil, journal.Damaged(r.Revision, "%s and %s have it both", j.path(sidePath(other.Key)), j.path(sidePath(r.Key)))
		}
		if r.Revision > j.state.Ceiling && j.state.Identity != "" {
			return nil, journal.Damaged(r.Revision, "%s has it, but the last one can be %d", j.path(sidePath(r.Key)), j.state.Ceiling)
		}
		if r.Deleted {
			unfinished = append(unfinished, r)
			continue
		}
		j.records[r.Revision] = r.Record
		e := &entry{key: r.Key, revision: r.Revision, object: r.object}
		e.place, e.placed = j.layout.place(r.Key)
		// An object file that was finished and is not so now was edited.
		e.settled = r.Revision <= j.state.Finished || !e.placed
		j.know(e)
		j.loaded = append(j.loaded, r.Record)
	}
	slices.SortFunc(j.loaded, byRevision)
	return unfinished, nil
}

func (j *Journal) readRecord(name string) (sideRecord, error) {
	data, err := j.read(name, 1<<31)
	if err != nil {
		return sideRecord{}, journal.Damaged(0, "%s: %w", j.path(name), err)
	}
	return j.parseRecord(name, data)
}

func (j *Journal) parseRecord(name string, data []byte) (sideRecord, error) {
	r, err := decodeRecord(data)
	if newer := (newerFormatError{}); errors.As(err, &newer) {
		return sideRecord{}, fmt.Errorf("%s: %w", j.path(name), newer)
	}
	if err == nil && sidePath(r.Key) != name {
		err = fmt.Errorf("it is the record of %q", r.Key)
	}
	if err != nil {
		return sideRecord{}, journal.Damaged(r.Revision, "%s: %w", j.path(name), err)
	}
	return r, nil
}

// sidePaths lists the side files below a directory.
func (j *Journal) sidePaths(dir string, found []string) ([]string, error) {
	list, err := j.files.List(dir)
	if err != nil {
		return nil, err
	}
	for _, item := range list {
		name := path.Join(dir, item.Name())
		switch {
		case item.IsDir():
			if found, err = j.sidePaths(name, found); err != nil {
				return nil, err
			}
		case strings.HasSuffix(name, recordSuffix) && item.Type().IsRegular():
			found = append(found, name)
		case strings.HasPrefix(item.Name(), "."): // of a file manager, say
		default:
			return nil, journal.Damaged(0, "%s is no record, and nothing else belongs there: remove it", j.path(name))
		}
	}
	return found, nil
}

// clean removes what a crash left behind.
func (j *Journal) clean(unfinished []sideRecord) error {
	temps, err := j.files.List(tempDir)
	if err != nil {
		return err
	}
	for _, item := range temps {
		name := path.Join(tempDir, item.Name())
		restored, err := j.restore(name, unfinished)
		if err != nil {
			return err
		}
		if restored {
			continue
		}
		if err := j.files.Remove(name); err != nil {
			return err
		}
	}
	for _, r := range unfinished {
		if place, placed := j.layout.place(r.Key); placed && r.object.Suffix != "" {
			name := place.stem + r.object.Suffix
			_, hash, err := j.hash(name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil && hash == r.object.Replaces {
				if err := j.removeObject(name, r.Revision, hash); err != nil {
					return err
				}
			}
		}
		if err := j.files.Remove(sidePath(r.Key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeObject removes an object file durably, if it still is what a revision
// replaces.
func (j *Journal) removeObject(name string, revision uint64, replaces digest) error {
	displaced := displacedPath(revision, path.Ext(name))
	_, err := j.takeAway(name, displaced, func() (bool, error) {
		file, err := j.fingerprint(displaced)
		return file.hash == replaces, err
	})
	if err != nil {
		return err
	}
	return j.files.SyncDir(path.Dir(name))
}

// Identity names this journal: it is made up once, when the journal is created,
// and stays the same wherever the directory is moved.
func (j *Journal) Identity() string { return j.identity }

// path is how people call a file.
func (j *Journal) path(name string) string { return filepath.Join(j.root, filepath.FromSlash(name)) }

// know adds an entry. It needs mu, or that nobody else is there yet.
func (j *Journal) know(e *entry) {
	j.entries[e.key] = e
	if e.placed {
		j.stems[e.place.stem] = e
	}
}

func (j *Journal) forget(e *entry) {
	delete(j.entries, e.key)
	if e.placed {
		delete(j.stems, e.place.stem)
	}
}

// Replay implements journal.Journal. Everything up to the last revision is
// compacted: there is one record for each key, and none is a tombstone.
func (j *Journal) Replay(ctx context.Context, yield func(journal.Record) error) (compacted uint64, err error) {
	j.mu.Lock()
	records, compacted, closed := j.loaded, j.compacted, j.closed
	j.loaded = nil
	j.mu.Unlock()
	if closed {
		return 0, journal.ErrClosed
	}
	for _, r := range records {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("replay files %s: %w", j.root, err)
		}
		if err := yield(r); err != nil {
			return 0, fmt.Errorf("replay files %s: %w", j.root, err)
		}
	}
	return compacted, nil
}

// Append implements journal.Journal.
func (j *Journal) Append(record journal.Record) (wait func() error, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	o := &operation{record: record, fresh: true, proposal: j.permitted, done: make(chan struct{})}
	j.permitted = nil
	if err := j.errLocked(); err != nil {
		return nil, err
	}
	if record.Revision == 0 || j.last != 0 && record.Revision != j.last+1 {
		return nil, fmt.Errorf("append to files %s: revision %d does not follow %d", j.root, record.Revision, j.last)
	}
	if o.proposal != nil {
		o.proposal.used.Store(true)
	}
	j.last = record.Revision
	j.records[record.Revision] = record
	j.most = max(j.most, len(j.records))
	j.enqueue(o)
	return func() error {
		<-o.done
		if o.err != nil {
			return fmt.Errorf("files %s: revision %d may be lost: %w", j.root, record.Revision, o.err)
		}
		return nil
	}, nil
}

// Read implements journal.Journal.
func (j *Journal) Read(revision uint64) (journal.Record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return journal.Record{}, journal.ErrClosed
	}
	record, ok := j.records[revision]
	if !ok {
		return journal.Record{}, fmt.Errorf("read files %s: revision %d: %w", j.root, revision, journal.ErrNotFound)
	}
	return record, nil
}

// Trim implements journal.Journal. Records that are dropped go from memory. The
// side file of one that was superseded, or of a tombstone, has gone long since.
func (j *Journal) Trim(compacted uint64, drop []uint64) error {
	j.mu.Lock()
	if err := j.errLocked(); err != nil {
		j.mu.Unlock()
		return err
	}
	var newest []journal.Record
	for _, revision := range drop {
		r := j.records[revision]
		if e := j.entries[r.Key]; e != nil && e.revision == revision {
			newest = append(newest, r)
		}
		delete(j.records, revision)
	}
	// A map keeps the room of all that was ever in it, and so would its clone.
	if j.most > 1024 && len(j.records) < j.most/4 {
		smaller := make(map[uint64]journal.Record, len(j.records))
		maps.Copy(smaller, j.records)
		j.records, j.most = smaller, len(smaller)
	}
	// The next record follows at once, also while the jump is being made durable.
	last, before := j.last, j.compacted
	jump := compacted > last
	j.last, j.compacted = max(last, compacted), compacted
	j.mu.Unlock()
	if !jump && len(newest) == 0 {
		return nil
	}
	err := j.do(func() error {
		if err := j.dropNewest(newest); err != nil || !jump {
			return err
		}
		if err := j.reserve(compacted); err != nil {
			return err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.committed = max(j.committed, compacted)
		return nil
	})
	if err != nil {
		if j.mu.Lock(); jump && j.last == compacted {
			j.last, j.compacted = last, before
		}
		j.mu.Unlock()
		return fmt.Errorf("trim files %s: %w", j.root, err)
	}
	return nil
}

// dropNewest removes the files of keys whose last record was dropped, which the core
// never does.
func (j *Journal) dropNewest(records []journal.Record) error {
	for _, r := range records {
		j.mu.Lock()
		e := j.entries[r.Key]
		if e != nil {
			j.forget(e)
		}
		j.mu.Unlock()
		if e == nil {
			continue
		}
		if err := j.removeFiles(e); err != nil {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.know(e)
			j.records[r.Revision] = r
			return err
		}
	}
	return nil
}

func (j *Journal) removeFiles(e *entry) error {
	for _, name := range []string{sidePath(e.key), e.path()} {
		if name == "" {
			continue
		}
		if err := j.files.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Err implements journal.Journal.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.errLocked()
}

// errLocked is Err with mu held.
func (j *Journal) errLocked() error {
	switch {
	case j.closed:
		return journal.ErrClosed
	case j.failure != nil:
		return fmt.Errorf("files %s accept no more records: %w", j.root, j.failure)
	}
	return nil
}

// fail makes the journal read-only, in the midst of some operations. The first reason
// counts, unless it was transient and this one is not.
func (j *Journal) fail(err error, midst []*operation) {
	j.mu.Lock()
	counts := j.failure == nil || errors.Is(j.failure, journal.ErrTransient) && !errors.Is(err, journal.ErrTransient)
	if counts {
		j.failure, j.failed = err, midst
	}
	j.mu.Unlock()
	if counts {
		j.logger.Error("files: failed, no more records are accepted", "dir", j.root, "err", err)
	}
}

// Close implements journal.Journal. Run must have ended. It returns the failure that
// made the journal read-only, if there was one.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	err := j.failure
	j.mu.Unlock()
	close(j.stop)
	<-j.stopped
	if err == nil {
		j.mu.Lock()
		err = j.failure
		j.mu.Unlock()
	}
	if err == nil {
		next := j.state
		next.Ceiling, next.Finished, next.Closed = j.last, j.finished(j.last), true
		err = j.writeState(next)
	}
	if err = errors.Join(err, j.lock.Close()); err != nil {
		return fmt.Errorf("close files %s: %w", j.root, err)
	}
	return nil
}
