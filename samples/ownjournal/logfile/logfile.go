// Package logfile is a custom journal: it appends records to a file, each with a checksum, and syncs them in groups.
// It is small and fulfils the whole contract. Compared with the project's own journals it has three limitations:
// opening reads and rewrites the whole file, a full disk is a failure until the server is restarted, and a removed
// lock file is not noticed. It needs a Unix system for its lock.
package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/annexapi/annex/store/journal"
)

const (
	logName  = "records"
	lockName = "lock"
)

// minGarbage is the number of obsolete bytes from which the log is rewritten.
const minGarbage = 1 << 20

// Open opens the log in a directory, and creates it if it is missing. The error matches journal.ErrLocked if another
// process has it open, and journal.ErrDamaged if it is damaged; then it is left unchanged.
func Open(dir string) (journal.Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	j := &log{path: filepath.Join(dir, logName), lock: lock, at: map[uint64]place{}, syncDir: syncDir}
	if err := j.open(); err != nil {
		if j.file != nil {
			_ = j.file.Close() // nothing was changed
		}
		return nil, fmt.Errorf("open log %s: %w", j.path, errors.Join(err, lock.Close()))
	}
	return j, nil
}

// log implements journal.Journal. It writes a record to the file at once, where it survives the process, and syncs a
// group of records to disk when the first of their writers waits.
type log struct {
	path    string
	lock    *os.File
	syncDir func(dir string) error // replaced in tests

	// syncing is held by the writer that syncs for all waiting writers, and while the file is replaced. It is locked
	// before mu.
	syncing sync.Mutex

	mu        sync.RWMutex
	file      *os.File
	end       int64            // of the file
	durable   int64            // bytes of the file that are on disk
	live      int64            // bytes of the frames in at
	at        map[uint64]place // by revision
	last      uint64           // last revision ever appended or jumped to; 0 if there was none
	compacted uint64
	failed    error
}

// place is the position of a frame in the file.
type place struct{ offset, size int64 }

// open reads the log and rewrites it: without an end that a crash may have cut off, and synced, since after a crash
// some of it may be only in the system's cache.
func (j *log) open() (err error) {
	data, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return j.rewrite()
	}
	if err != nil {
		return err
	}
	durable, ok := decodeHeader(data)
	if !ok {
		return journal.Damaged(0, "it is no log")
	}
	j.end = headerSize
	for j.end < int64(len(data)) {
		f, size, err := decodeFrame(data[j.end:])
		if err != nil {
			durable = max(durable, durableAfter(data[j.end:]))
			break
		}
		j.take(f, int64(size))
	}
	if j.end < durable {
		return journal.Damaged(0, "bytes from %d on are unreadable, and %d of them were on disk", j.end, durable-j.end)
	}
	if j.file, err = os.Open(j.path); err != nil {
		return err
	}
	return j.rewrite()
}

// durableAfter returns the largest durable in the intact frames behind an unreadable one.
func durableAfter(data []byte) (durable int64) {
	for {
		next := bytes.Index(data, []byte(frameMagic))
		if next < 0 {
			return durable
		}
		if f, _, err := decodeFrame(data[next:]); err == nil {
			durable = max(durable, f.durable)
		}
		data = data[next+1:]
	}
}

// take records a frame at the end of the file.
func (j *log) take(f frame, size int64) {
	if f.trim != nil {
		j.compacted, j.last = f.trim.compacted, max(j.last, f.trim.last, f.trim.compacted)
		for _, revision := range f.trim.drop {
			j.live -= j.at[revision].size
			delete(j.at, revision)
		}
	} else {
		j.last = max(j.last, f.record.Revision) // a rewritten log begins with the last revision
		j.at[f.record.Revision] = place{j.end, size}
		j.live += size
	}
	j.end += size
}

// Replay implements journal.Journal.
func (j *log) Replay(ctx context.Context, yield func(journal.Record) error) (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if errors.Is(j.failed, journal.ErrClosed) {
		return 0, j.failed
	}
	for _, revision := range slices.Sorted(maps.Keys(j.at)) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		record, err := j.read(revision)
		if err != nil {
			return 0, err
		}
		if err := yield(record); err != nil {
			return 0, err
		}
	}
	return j.compacted, nil
}

// Append implements journal.Journal.
func (j *log) Append(record journal.Record) (wait func() error, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil && j.last != 0 && record.Revision != j.last+1 {
		return nil, fmt.Errorf("append revision %d: the last one is %d", record.Revision, j.last)
	}
	if err := j.write(frame{record: record}); err != nil {
		return nil, fmt.Errorf("append revision %d: %w", record.Revision, err)
	}
	file, end := j.file, j.end
	return func() error { return j.await(file, end) }, nil
}

// write appends a frame to the file. The caller holds mu.
func (j *log) write(f frame) error {
	if j.failed != nil {
		return j.failed
	}
	f.durable = j.durable
	encoded := f.encode()
	if _, err := j.file.WriteAt(encoded, j.end); err != nil {
		j.failed = err
		return err
	}
	j.take(f, int64(len(encoded)))
	return nil
}

// await returns when the first bytes of a file are on disk.
func (j *log) await(file *os.File, bytes int64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.RLock()
	current, end, durable, failed := j.file, j.end, j.durable, j.failed
	j.mu.RUnlock()
	switch {
	case current == file && bytes <= durable:
		return nil
	case failed != nil:
		return failed // after a crash, a replaced file may have its name again
	case current != file:
		return nil // its replacement is completely on disk
	}
	err := file.Sync()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.failed = err
		return err
	}
	j.durable = end
	return nil
}

// Read implements journal.Journal.
func (j *log) Read(revision uint64) (journal.Record, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if errors.Is(j.failed, journal.ErrClosed) {
		return journal.Record{}, j.failed
	}
	return j.read(revision)
}

func (j *log) read(revision uint64) (journal.Record, error) {
	at, ok := j.at[revision]
	if !ok {
		return journal.Record{}, fmt.Errorf("revision %d: %w", revision, journal.ErrNotFound)
	}
	encoded := make([]byte, at.size)
	if _, err := j.file.ReadAt(encoded, at.offset); err != nil {
		return journal.Record{}, fmt.Errorf("read revision %d: %w", revision, err)
	}
	f, _, err := decodeFrame(encoded)
	if err == nil && f.record.Revision != revision {
		err = fmt.Errorf("there is revision %d", f.record.Revision)
	}
	if err != nil {
		return journal.Record{}, journal.Damaged(revision, "bytes from %d on: %w", at.offset, err)
	}
	return f.record, nil
}

// Trim implements journal.Journal. If most of the log is obsolete, it rewrites the log while writers wait.
func (j *log) Trim(compacted uint64, drop []uint64) error {
	jump, err := j.trim(compacted, drop)
	if err != nil || jump == nil {
		return err
	}
	return jump()
}

func (j *log) trim(compacted uint64, drop []uint64) (jump func() error, err error) {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	jumps := compacted > j.last
	if err := j.write(frame{trim: &trim{compacted, j.last, drop}}); err != nil {
		return nil, fmt.Errorf("trim to revision %d: %w", compacted, err)
	}
	if garbage := j.end - j.live; garbage > max(minGarbage, j.live) {
		if err := j.rewrite(); err != nil {
			return nil, fmt.Errorf("write log %s anew: %w", j.path, err)
		}
	}
	if !jumps {
		return nil, nil
	}
	file, end := j.file, j.end
	return func() error { return j.await(file, end) }, nil
}

// rewrite replaces the file by a synced one without dropped records. The caller holds syncing and mu. If it fails,
// the old file stays in use, or failed is set.
func (j *log) rewrite() error {
	temporary := j.path + ".new"
	file, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	next := &log{file: file, at: make(map[uint64]place, len(j.at)), end: headerSize}
	err = j.copyTo(next)
	if err == nil {
		err = os.Rename(temporary, j.path)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(temporary))
	}
	if j.file != nil {
		_ = j.file.Close() // it is obsolete
	}
	j.file, j.at, j.live = file, next.at, next.live
	j.end, j.durable = next.end, next.end
	j.failed = j.syncDir(filepath.Dir(j.path)) // otherwise a crash may leave either file
	return j.failed
}

// copyTo writes the records that were not dropped to a new log, and syncs it.
func (j *log) copyTo(next *log) error {
	if err := next.write(frame{trim: &trim{compacted: j.compacted, last: j.last}}); err != nil {
		return err
	}
	for _, revision := range slices.Sorted(maps.Keys(j.at)) {
		record, err := j.read(revision)
		if err != nil {
			return err
		}
		if err := next.write(frame{record: record}); err != nil {
			return err
		}
	}
	if _, err := next.file.WriteAt(encodeHeader(next.end), 0); err != nil {
		return err
	}
	return next.file.Sync()
}

// Err implements journal.Journal.
func (j *log) Err() error {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.failed
}

// Close implements journal.Journal.
func (j *log) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(j.failed, journal.ErrClosed) {
		return nil
	}
	var err error
	if j.failed == nil {
		err = j.file.Sync()
	}
	j.failed = journal.ErrClosed
	return errors.Join(err, j.file.Close(), j.lock.Close())
}

// lockDir locks a directory until the file is closed or the process ends.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close() // it is not used
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = journal.ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return lock, nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
