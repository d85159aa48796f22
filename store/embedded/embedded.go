// Package embedded is the default journal of a server: a Pebble database in a directory of its own, with one entry
// per revision.
//
// Pebble brings group commit, checksums on every block, and recovery. This package adds the guarantees of a journal
// that Pebble does not give. A record that cannot be read back exactly is reported, even where Pebble takes damage
// for the end of a torn log (see watermark). An I/O error makes the journal read-only instead of ending the process
// (see disk). The files are described in docs/formats/embedded.md.
package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// Options tune a journal. The zero value is right for a server.
type Options struct {
	// CacheSize is the memory for blocks read from disk, in bytes. The journal reads only records that the core no
	// longer holds. 0 means 16 MiB.
	CacheSize int64
	// MemTableSize is the number of bytes of records that are collected in memory before they are written out in
	// order. As much again is kept for the next records. While the disk does not keep up, sixteen times as much may
	// be in use, which is also the most that is read back from the log after a crash. 0 means 8 MiB.
	MemTableSize int
	// CheckInterval is the interval at which the journal checks that its directory exists, is still locked by it, and
	// answers. If a check takes more than ten intervals, Err reports it until the check returns. 0 means a second.
	CheckInterval time.Duration
	// Logger receives the messages of the database: failures and slow disks as errors and warnings, the rest as debug
	// messages. Nil is silent.
	Logger *slog.Logger
	// FS is the file system. Nil is the operating system's.
	FS vfs.FS
}

// Journal implements journal.Journal.
type Journal struct {
	*dirLock
	identity [16]byte
	db       *pebble.DB
	disk     *disk
	watchdog *watchdog

	// last is the revision that the next record has to follow: the revision of the last accepted record, or the
	// higher one set by a Trim. 0 if there was neither.
	last   atomic.Uint64
	closed atomic.Bool

	// raised is set if the journal has the newest format.
	raised atomic.Bool

	mu     sync.Mutex // held from reading bounds until their new value is applied
	bounds bounds
}

var (
	_ journal.Recoverer  = (*Journal)(nil)
	_ journal.Shelf      = (*Journal)(nil)
	_ journal.ManyReader = (*Journal)(nil)
)

// slowDisk is the duration after which an operation is reported as slow.
const slowDisk = 5 * time.Second

// Open opens the journal in dir, and creates both if they do not exist. Only the owner has access to a directory that
// Open creates.
//
// The error matches journal.ErrLocked if the journal is open already, in this process or another, and
// journal.ErrDamaged if data is missing or broken. A journal in a newer format is rejected. These checks, as far as
// they are possible without reading every record, come before any change; Replay checks the rest.
func Open(dir string, options Options) (*Journal, error) {
	j, err := open(dir, options)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", dir, err)
	}
	return j, nil
}

func open(dir string, options Options) (*Journal, error) {
	p, err := enter(dir, options)
	if err != nil {
		return nil, err
	}
	// Only the first error explains why the journal cannot be opened.
	defer func() { _ = p.leave() }()
	return p.open()
}

// open opens the journal in a locked directory, and becomes one more user of it.
func (p *dirLock) open() (_ *Journal, err error) {
	watermark, found, err := openWatermark(p.files, p.dir, p.verify)
	if err != nil {
		return nil, journal.Refused(err)
	}
	defer func() {
		if err != nil {
			_ = watermark.close(false)
		}
	}()
	lock, err := p.databaseLock()
	if err != nil {
		return nil, err
	}
	state, err := inspect(p.files, p.dir, lock, watermark)
	if err != nil {
		return nil, journal.Refused(err)
	}
	if state.exists && found && !state.manifestKnown {
		if err := watermark.dropManifest(); err != nil {
			return nil, err
		}
	}
	if state.exists && !found {
		p.logger.Warn("journal: no WITNESS file; damage at the end of the log cannot be distinguished from a power failure", "dir", p.dir)
	}

	j := &Journal{dirLock: p, bounds: state.bounds}
	j.disk = newDisk(p.files, p.dir, watermark, p.verify, func(err error) {
		p.logger.Error("journal: failed, it accepts no more records", "dir", p.dir, "err", err)
	})
	j.db, err = pebble.Open(p.dir, databaseOptions(p.options, j.disk, lock, p.logger))
	j.disk.opened()
	if err != nil {
		j.disk.release()
		if failure := j.disk.error(); failure != nil {
			// Pebble's error is a consequence of the failure of the disk.
			return nil, failure
		}
		return nil, journal.Refused(describe(err))
	}
	j.last.Store(state.last)
	if err := j.begin(state); err != nil {
		_ = j.closeDatabase()
		return nil, err
	}
	p.users.Add(1)
	j.watchdog = watch(p.dir, p.options.CheckInterval, p.verify, func(err error) { j.disk.failed("check", p.dir, err) })
	return j, nil
}

// begin finishes opening: it gives a new journal its identity.
func (j *Journal) begin(state contents) error {
	if version := j.db.FormatMajorVersion(); version != pebble.FormatNewest {
		return fmt.Errorf("the database has format %d, want %d", version, pebble.FormatNewest)
	}
	j.identity = state.format.identity
	if state.format.version == 0 {
		if _, err := rand.Read(j.identity[:]); err != nil {
			return err
		}
	}
	j.raised.Store(state.format.version == formatVersion)
	if state.format.version < plainVersion {
		present := format{version: plainVersion, identity: j.identity}
		if err := j.db.Set(formatKey, present.encode(), pebble.Sync); err != nil {
			return describe(err)
		}
	}
	return j.disk.error()
}

// raise adds the newest format to a batch that needs it. Older programs then refuse the journal.
func (j *Journal) raise(batch *pebble.Batch) error {
	if j.raised.Load() {
		return nil
	}
	return batch.Set(formatKey, format{version: formatVersion, identity: j.identity}.encode(), nil)
}

// Pebble reports a disk with less than a tenth of its space available. On a large disk, a tenth is more than a
// journal, its compactions and a backup need.
const nearlyFull = 8 << 30

func databaseOptions(options Options, disk *disk, lock *pebble.Lock, logger *slog.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:   disk,
		Lock: lock,
		// The default is the oldest format, whose log does not distinguish a torn end from damage.
		FormatMajorVersion: pebble.FormatNewest,
		CacheSize:          16 << 20,
		MemTableSize:       8 << 20,
		// Writers must not wait for a compaction: on a failed disk it never ends, and reads from the files are too
		// rare for their order to matter.
		L0StopWritesThreshold:       1 << 20,
		MemTableStopWritesThreshold: 16,
		// A replay reads all blocks, and requests read few.
		Levels: [7]pebble.LevelOptions{{BlockSize: 32 << 10}},
		Logger: databaseLogger{logger: logger, fail: disk.fail},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { disk.fail(describe(err)) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				disk.fail(journal.Damaged(0, "%s: %w", info.Path, oneLine{info.Details}))
			},
			LowDiskSpace: func(info pebble.LowDiskSpaceInfo) {
				if info.AvailBytes >= nearlyFull {
					return
				}
				logger.Warn("journal: the disk is nearly full", "available", info.AvailBytes, "total", info.TotalBytes)
			},
		},
	}
	if options.CacheSize > 0 {
		o.CacheSize = options.CacheSize
	}
	if options.MemTableSize > 0 {
		o.MemTableSize = uint64(options.MemTableSize)
	}
	return o
}

// Identity returns the random identity of this journal. It is chosen when the journal is created, and stays the same
// if the directory is moved.
func (j *Journal) Identity() string { return hex.EncodeToString(j.identity[:]) }

// DiskUsage returns the size of the journal's files on disk in bytes, including files that are about to be removed.
func (j *Journal) DiskUsage() uint64 { return j.db.Metrics().DiskSpaceUsage() }

// Err implements journal.Journal. While the directory does not answer, the error matches journal.ErrUnresponsive.
func (j *Journal) Err() error {
	if err := j.failed(); err != nil {
		return err
	}
	return j.watchdog.err()
}

// failed returns the reason why the journal accepts no more records, for good or until it is recovered.
func (j *Journal) failed() error {
	if j.closed.Load() {
		return journal.ErrClosed
	}
	return j.disk.error()
}

// Append implements journal.Journal.
func (j *Journal) Append(record journal.Record) (wait func() error, err error) {
	if err := j.failed(); err != nil {
		return nil, err
	}
	last := j.last.Load()
	if record.Revision == 0 || last != 0 && record.Revision != last+1 {
		return nil, fmt.Errorf("append to journal %s: revision %d does not follow %d", j.dir, record.Revision, last)
	}
	batch := j.db.NewBatchWithSize(recordLength(record) + 128)
	if last == 0 {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.bounds.first = record.Revision
		if err := batch.Set(boundsKey, j.bounds.encode(), nil); err != nil {
			return nil, err
		}
	}
	if record.User != "" {
		if err := j.raise(batch); err != nil {
			return nil, err
		}
	}
	entry := batch.SetDeferred(recordKeyLength, recordLength(record))
	copy(entry.Key, recordKey(record.Revision))
	encodeRecord(entry.Value, record)
	if err := entry.Finish(); err != nil {
		return nil, err
	}
	if err := j.db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
		j.disk.fail(err)
	}
	if err := j.failed(); err != nil {
		return nil, err
	}
	if record.User != "" {
		j.raised.Store(true)
	}
	j.last.Store(record.Revision)
	return sync.OnceValue(func() error { return j.wait(batch, record.Revision) }), nil
}

// wait returns nil once batch, and all batches before it, are on disk. Pebble syncs the log in the order of the
// batches, and a disk that fails at any of them records the failure before Pebble learns of it.
func (j *Journal) wait(batch *pebble.Batch, revision uint64) error {
	if err := batch.SyncWait(); err != nil {
		j.disk.fail(err)
	}
	_ = batch.Close() // the only possible error is a second close
	if j.disk.error() == nil {
		if err := j.disk.watermark.recordRevision(revision); err != nil {
			j.disk.fail(err)
		}
	}
	if err := j.disk.error(); err != nil {
		return fmt.Errorf("revision %d may be lost: %w", revision, err)
	}
	return nil
}

// Read implements journal.Journal.
func (j *Journal) Read(revision uint64) (journal.Record, error) {
	if j.closed.Load() {
		return journal.Record{}, journal.ErrClosed
	}
	record, err := j.read(revision)
	if err != nil {
		return journal.Record{}, fmt.Errorf("read journal %s: %w", j.dir, err)
	}
	return record, nil
}

func (j *Journal) read(revision uint64) (journal.Record, error) {
	data, closer, err := j.db.Get(recordKey(revision))
	if errors.Is(err, pebble.ErrNotFound) {
		return journal.Record{}, fmt.Errorf("revision %d: %w", revision, journal.ErrNotFound)
	}
	if err != nil {
		return journal.Record{}, damagedBy(revision, err)
	}
	record, err := decodeRecord(revision, data)
	return record, errors.Join(err, closer.Close())
}

// near is the number of records that ReadMany rather passes than seeks the next one: about those of a block.
const near = 16

// ReadMany implements journal.ManyReader.
func (j *Journal) ReadMany(revisions []uint64, yield func(journal.Record) bool) error {
	if j.closed.Load() {
		return journal.ErrClosed
	}
	if err := j.readMany(revisions, yield); err != nil {
		return fmt.Errorf("read journal %s: %w", j.dir, err)
	}
	return nil
}

func (j *Journal) readMany(revisions []uint64, yield func(journal.Record) bool) (err error) {
	iter, err := j.db.NewIter(&pebble.IterOptions{LowerBound: recordPrefix, UpperBound: recordLimit})
	if err != nil {
		return describe(err)
	}
	var at uint64 // the revision that the iterator has reached
	defer func() {
		// Close repeats an error of the iterator.
		if closed := iter.Close(); err == nil && closed != nil {
			err = damagedBy(at, closed)
		}
	}()
	for _, revision := range revisions {
		for passed := 0; at < revision; passed++ {
			var valid, isRecord bool
			if at > 0 && passed < near && revision-at <= near {
				valid = iter.Next()
			} else {
				valid = iter.SeekGE(recordKey(revision))
			}
			if !valid {
				return nil
			}
			if at, isRecord = revisionOf(iter.Key()); !isRecord {
				return journal.Damaged(0, "%q is not a key of a record", iter.Key())
			}
		}
		if at > revision {
			continue
		}
		data, err := iter.ValueAndErr()
		if err != nil {
			return damagedBy(revision, err)
		}
		record, err := recordIn(revision, data)
		if err != nil {
			return err
		}
		if !yield(record) {
			return nil
		}
	}
	return nil
}

// Trim implements journal.Journal.
func (j *Journal) Trim(compacted uint64, drop []uint64) error {
	return j.TrimAndShelve(compacted, drop, nil)
}

// TrimAndShelve implements journal.Shelf.
func (j *Journal) TrimAndShelve(compacted uint64, drop []uint64, edits []journal.ShelfEdit) error {
	if err := j.failed(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	next := j.bounds
	next.compacted = compacted
	batch := j.db.NewBatch()
	defer func() { _ = batch.Close() }()
	last := j.last.Load()
	raises := compacted > last
	if raises {
		// The records in between count as dropped.
		next.dropped = compacted
	}
	for _, revision := range drop {
		if revision > last {
			continue // it does not exist
		}
		next.dropped = max(next.dropped, revision)
		if err := batch.Delete(recordKey(revision), nil); err != nil {
			return err
		}
	}
	if err := batch.Set(boundsKey, next.encode(), nil); err != nil {
		return err
	}
	if err := j.shelve(batch, edits); err != nil {
		return err
	}
	durable := pebble.NoSync
	if raises {
		durable = pebble.Sync
	}
	if err := j.db.Apply(batch, durable); err != nil {
		j.disk.fail(err)
	}
	if raises && j.disk.error() == nil {
		if err := j.disk.watermark.recordRevision(compacted); err != nil {
			j.disk.fail(err)
		}
	}
	if err := j.failed(); err != nil {
		return err
	}
	j.bounds = next
	if len(edits) > 0 {
		j.raised.Store(true)
	}
	if raises {
		j.last.Store(compacted)
	}
	return nil
}

// Close implements journal.Journal. It returns the failure that made the journal read-only, if any.
func (j *Journal) Close() error {
	if j.closed.Swap(true) {
		return nil
	}
	j.watchdog.close()
	if j.disk.error() == nil {
		// With an empty log, the next opening has no records to read back.
		if err := j.db.Flush(); err != nil {
			j.disk.fail(err)
		}
	}
	if err := errors.Join(j.closeDatabase(), j.leave()); err != nil {
		return fmt.Errorf("close journal %s: %w", j.dir, err)
	}
	return nil
}

func (j *Journal) closeDatabase() error {
	j.disk.release()
	err := describe(j.db.Close())
	failure := j.disk.error()
	if failure != nil {
		// Pebble's error is a consequence of the failure of the disk.
		err = failure
	}
	return errors.Join(err, j.disk.watermark.close(failure == nil))
}

// contents is the state of a journal before it is opened.
type contents struct {
	exists        bool
	manifestKnown bool   // to the watermark
	format        format // has version 0 if the journal is new
	bounds        bounds
	last          uint64
}

// inspect reads the journal in dir without changing it, and returns an error if it must not be opened.
func inspect(files vfs.FS, dir string, lock *pebble.Lock, watermark *watermark) (contents, error) {
	desc, err := pebble.Peek(dir, files)
	if err != nil {
		return contents{}, describe(err)
	}
	if !desc.Exists {
		return contents{}, watermark.checkRevision(0)
	}
	if err := watermark.checkManifest(desc.ManifestFilename); err != nil {
		return contents{}, err
	}
	if err := checkOptions(files, dir, desc.OptionsFilename); err != nil {
		return contents{}, err
	}
	db, err := pebble.Open(dir, &pebble.Options{
		FS:       files,
		Lock:     lock,
		ReadOnly: true,
		// The damage reported here is also returned as an error.
		Logger:        databaseLogger{logger: slog.New(slog.DiscardHandler), fail: func(error) {}},
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		return contents{}, describe(err)
	}
	found, err := readContents(db)
	if closed := db.Close(); err == nil {
		err = describe(closed)
	}
	if err != nil {
		return contents{}, err
	}
	found.manifestKnown = watermark.knows(desc.ManifestFilename)
	return found, watermark.checkRevision(found.last)
}

// checkOptions names the file with Pebble's options in the error if that file prevents the database from opening.
// Pebble does not name it, and does not need it.
func checkOptions(files vfs.FS, dir, path string) error {
	if path == "" {
		return nil
	}
	file, err := files.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err == nil {
		options := &pebble.Options{FS: files}
		options.EnsureDefaults()
		err = options.CheckCompatibility(dir, string(data))
	}
	if err != nil {
		return fmt.Errorf("%s cannot be read: %w; the file only has settings: move it away and restart", path, oneLine{err})
	}
	return nil
}

func readContents(db *pebble.DB) (contents, error) {
	found := contents{exists: true}
	iter, err := db.NewIter(&pebble.IterOptions{LowerBound: recordPrefix, UpperBound: recordLimit})
	if err != nil {
		return contents{}, describe(err)
	}
	hasRecords := iter.Last()
	if hasRecords {
		revision, ok := revisionOf(iter.Key())
		if !ok {
			err = journal.Damaged(0, "%q is not a key of a record", iter.Key())
		}
		found.last = revision
	}
	if closed := iter.Close(); err == nil {
		err = describe(closed)
	}
	if err != nil {
		return contents{}, err
	}

	data, err := get(db, formatKey)
	switch {
	case err != nil:
		return contents{}, err
	case data == nil && hasRecords:
		return contents{}, journal.Damaged(0, "the journal has records but no format")
	case data != nil:
		if found.format, err = decodeFormat(data); err != nil {
			return contents{}, err
		}
		if err := found.format.check(); err != nil {
			return contents{}, err
		}
	}

	data, err = get(db, boundsKey)
	switch {
	case err != nil:
		return contents{}, err
	case data == nil && hasRecords:
		return contents{}, journal.Damaged(0, "the journal has records but no bounds")
	case data != nil:
		if found.bounds, err = decodeBounds(data); err != nil {
			return contents{}, err
		}
	}
	found.last = max(found.last, found.bounds.dropped)
	return found, nil
}

// get returns a copy of the value at key, nil if there is none.
func get(db *pebble.DB, key []byte) ([]byte, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, describe(err)
	}
	data := append(make([]byte, 0, len(value)), value...)
	return data, closer.Close()
}

// describe marks Pebble's corruption errors as damage.
func describe(err error) error {
	switch {
	case err == nil:
		return nil
	case pebble.IsCorruptionError(err):
		return journal.Damaged(0, "%w", oneLine{err})
	default:
		return oneLine{err}
	}
}

func damagedBy(revision uint64, err error) error {
	if pebble.IsCorruptionError(err) {
		return journal.Damaged(revision, "%w", oneLine{err})
	}
	return fmt.Errorf("revision %d: %w", revision, oneLine{err})
}
