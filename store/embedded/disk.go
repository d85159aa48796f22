package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// disk is the file system that Pebble uses. Until the first failure it passes every operation to the file system
// beneath, and reports changes of the MANIFEST to the watermark.
//
// With the first error of a change to the journal's directory the disk fails, for good: no later change reaches the
// directory, which stays as a power cut at that moment would leave it, and the method error returns the reason.
// Pebble must not see that error where it cannot handle it. Pebble ends the process on errors of its log, of its
// MANIFEST and of directory syncs (a panic with a lock half released, or Logger.Fatalf and an undefined state), and
// it retries a failed flush for ever while writers wait. So a failed disk continues in memory: writes to the log and
// the MANIFEST seem to succeed, a flush finds room, and Pebble stays consistent, readable and closable. No writer is
// misled, because the journal checks for the error before it confirms anything.
//
// Operations that Pebble can do without get the error: a half written table (Pebble writes it again, in memory) and
// compactions. Compactions wait until the journal is closed, because Pebble would retry them without a pause. They do
// not wait while the journal is being opened, when Pebble waits for them and retries none.
//
// A failure is transient if the operating system refused an operation, changed nothing, and left nothing half done
// that opening cannot repair as it does after a kill. An error of a sync is never transient: the pages may be marked
// clean although the disk never got them, and a later read would take them for durable. Neither is an error of
// closing a file, which some file systems use to report a failed sync.
type disk struct {
	vfs.FS
	dir       string
	watermark *watermark
	verify    func() error // returns an error unless the directory still belongs to the journal
	onFail    func(error)

	failure atomic.Pointer[error]
	using   sync.RWMutex // held for reading by every operation that changes the directory
	memory  *vfs.MemFS
	opening atomic.Bool
	purges  atomic.Int32 // the number of purges in progress
	closing chan struct{}
}

func newDisk(files vfs.FS, dir string, watermark *watermark, verify func() error, onFail func(error)) *disk {
	memory := vfs.NewMem()
	// If the directory cannot be created here, creating its first file fails.
	_ = memory.MkdirAll(dir, 0o700)
	d := &disk{FS: files, dir: dir, watermark: watermark, verify: verify, onFail: onFail, memory: memory, closing: make(chan struct{})}
	d.opening.Store(true)
	return d
}

// error returns the failure, or nil.
func (d *disk) error() error {
	if failure := d.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

// fail records an error of Pebble or the journal if it is the first failure. Later errors are consequences of the
// first.
func (d *disk) fail(err error) {
	err = journal.Refused(err)
	if d.failure.CompareAndSwap(nil, &err) {
		d.onFail(err)
	}
}

// failed fails the disk if err is not nil, and reports whether the disk has failed, now or before. Of several
// concurrent failures, a lasting one takes precedence over a transient one.
func (d *disk) failed(operation, path string, err error) bool {
	if err != nil {
		if !namesPath(err) {
			err = fmt.Errorf("%s %s: %w", operation, path, err)
		}
		if operation != "sync" && operation != "close" {
			err = journal.Refused(err)
		}
		first := d.failure.CompareAndSwap(nil, &err)
		if first || d.failLastingly(err) {
			d.onFail(err)
		}
	}
	return d.failure.Load() != nil
}

// namesPath reports whether the text of an error names the failed operation and its path.
func namesPath(err error) bool {
	switch err.(type) {
	case *fs.PathError, *os.LinkError:
		return true
	}
	return false
}

// failLastingly replaces a transient failure by a lasting one, and reports whether it did.
func (d *disk) failLastingly(err error) bool {
	if errors.Is(err, journal.ErrTransient) {
		return false
	}
	before := d.failure.Load()
	return before != nil && errors.Is(*before, journal.ErrTransient) && d.failure.CompareAndSwap(before, &err)
}

// enter begins an operation that changes the directory, and returns false if the disk has failed. The operation ends
// with leave.
func (d *disk) enter() bool {
	d.using.RLock()
	if d.error() != nil {
		d.using.RUnlock()
		return false
	}
	return true
}

// enterToName is enter for operations that create, rename or remove names in the directory. It verifies the lock
// first, because such an operation could hit files of another process that has taken the directory over.
func (d *disk) enterToName(operation, path string) bool {
	if !d.enter() {
		return false
	}
	if d.failed(operation, path, d.verify()) {
		d.leave()
		return false
	}
	return true
}

func (d *disk) leave() { d.using.RUnlock() }

// quiesce waits for the last operations on the directory of a failed disk to end.
func (d *disk) quiesce() {
	d.using.Lock()
	defer d.using.Unlock()
}

// opened marks the end of opening.
func (d *disk) opened() { d.opening.Store(false) }

// release ends the wait of compactions on a failed disk. It is called once, when the journal is being closed.
func (d *disk) release() { close(d.closing) }

// owns reports whether path is in the journal's directory. Errors elsewhere, as in a copy for a backup, are the
// caller's.
func (d *disk) owns(path string) bool { return d.FS.PathDir(path) == d.dir }

func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !d.owns(name) {
		return d.FS.Create(name, category)
	}
	if !d.enterToName("create", name) {
		return d.createInMemory(name, category)
	}
	file, err := d.FS.Create(name, category)
	failed := d.failed("create", name, err)
	d.leave()
	if failed {
		if err == nil {
			_ = file.Close()
		}
		return d.createInMemory(name, category)
	}
	return d.wrap(name, file), nil
}

func (d *disk) createInMemory(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if category == "pebble-compaction" || category == "pebble-blob-file-rewrite" {
		if !d.opening.Load() {
			<-d.closing
		}
		return nil, d.error()
	}
	return d.memory.Create(name, category)
}

func (d *disk) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !d.owns(newName) {
		return d.FS.ReuseForWrite(oldName, newName, category)
	}
	if !d.enterToName("reuse", newName) {
		return d.createInMemory(newName, category)
	}
	file, err := d.reuse(oldName, newName, category)
	failed := d.failed("reuse", newName, err)
	d.leave()
	if failed {
		if err == nil {
			_ = file.Close()
		}
		return d.createInMemory(newName, category)
	}
	return d.wrap(newName, file), nil
}

// reuse turns an obsolete file into a new one. During a purge it does not reuse the file's content.
func (d *disk) reuse(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if d.purges.Load() == 0 {
		return d.FS.ReuseForWrite(oldName, newName, category)
	}
	if err := d.FS.Remove(oldName); err != nil {
		return nil, err
	}
	return d.FS.Create(newName, category)
}

// Open prefers a file that was written in memory after the failure.
func (d *disk) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	if d.error() != nil {
		if file, err := d.memory.Open(name); err == nil {
			return file, nil
		}
	}
	return d.FS.Open(name, options...)
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	file, err := d.FS.OpenDir(name)
	if err != nil || name != d.dir {
		return file, err
	}
	return d.wrap(name, file), nil
}

func (d *disk) Stat(name string) (vfs.FileInfo, error) {
	if d.error() != nil {
		if info, err := d.memory.Stat(name); err == nil {
			return info, nil
		}
	}
	return d.FS.Stat(name)
}

func (d *disk) Remove(name string) error {
	if !d.owns(name) {
		return d.FS.Remove(name)
	}
	if !d.enterToName("remove", name) {
		_ = d.memory.Remove(name)
		return nil
	}
	defer d.leave()
	err := d.FS.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.failed("remove", name, err)
	return nil
}

func (d *disk) Rename(oldName, newName string) error {
	if !d.owns(newName) {
		return d.FS.Rename(oldName, newName)
	}
	if d.enterToName("rename", newName) {
		defer d.leave()
		if !d.failed("rename", oldName, d.FS.Rename(oldName, newName)) {
			return nil
		}
	}
	_ = d.memory.Rename(oldName, newName)
	return nil
}

func (d *disk) Unwrap() vfs.FS { return d.FS }

func (d *disk) wrap(name string, file vfs.File) vfs.File {
	base := d.FS.PathBase(name)
	f := &diskFile{File: file, disk: d, name: name}
	f.table = strings.HasSuffix(base, ".sst") || strings.HasSuffix(base, ".blob")
	if strings.HasSuffix(base, ".log") {
		f.log = &logSpace{}
		if info, err := file.Stat(); err == nil {
			f.log.filled = info.Size() // a reused log has its former size
		}
	}
	f.manifest.number, f.isManifest = manifestNumber(base)
	return f
}

// manifestNumber returns the number of the MANIFEST with this file name.
func manifestNumber(base string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(base, "MANIFEST-")
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil
}

// diskFile is a file of the journal that is open for writing, or its directory.
// As with any vfs.File, changes come from one goroutine at a time.
type diskFile struct {
	vfs.File
	disk  *disk
	name  string
	table bool

	isManifest bool
	manifest   manifestState // the part written so far

	log *logSpace // nil for files other than logs
}

// logSpace holds the end of the written part of a log, and the end of the part whose blocks are allocated.
type logSpace struct {
	end, filled int64
	zeroes      []byte
}

// logAhead is how far, in bytes, a log is filled ahead of its last record: room for some two hundred records of a
// kilobyte. Syncing the filling takes as long as syncing a few of them.
const logAhead = 256 << 10

// logZeroes is the size of the buffer of zeroes, which is written repeatedly to fill a log.
const logZeroes = 32 << 10

// fillAhead keeps the log longer than its written part, by zeroes. A sync of data that lengthens a file, or allocates
// a block, also writes metadata of the file system, which takes half as long again. Pebble takes zeroes for the end
// of the log, just as it ignores the former content of a reused log.
//
// Filling is a hint, as Preallocate is: a log that cannot be filled is written all the same.
func (f *diskFile) fillAhead(written int) {
	f.log.end += int64(written)
	if f.log.end <= f.log.filled {
		return
	}
	if f.log.zeroes == nil {
		f.log.zeroes = make([]byte, logZeroes)
	}
	for f.log.filled = f.log.end; f.log.filled < f.log.end+logAhead; {
		clear(f.log.zeroes) // the file may have changed its argument
		n, err := f.File.WriteAt(f.log.zeroes, f.log.filled)
		if f.log.filled += int64(n); err != nil {
			f.log.filled = math.MaxInt64 // do not try again
		}
	}
}

// answer returns the error that Pebble sees of a failure.
func (f *diskFile) answer() error {
	if f.table {
		return f.disk.error()
	}
	return nil
}

func (f *diskFile) Write(p []byte) (int, error) {
	if f.disk.enter() {
		defer f.disk.leave()
		// The file may change its argument.
		if f.isManifest {
			f.manifest.checksum = crc32.Update(f.manifest.checksum, castagnoli, p)
			f.manifest.length += uint64(len(p))
		}
		n, err := f.File.Write(p)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		if !f.disk.failed("write", f.name, err) {
			if f.log != nil {
				f.fillAhead(n)
			}
			return n, nil
		}
	}
	if err := f.answer(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt fails: Pebble does not use it on files that it creates.
func (f *diskFile) WriteAt(p []byte, offset int64) (int, error) {
	return 0, fmt.Errorf("write %s at %d: %w", f.name, offset, errors.ErrUnsupported)
}

func (f *diskFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *diskFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *diskFile) sync(sync func() error) error {
	if !f.disk.enter() {
		return f.answer()
	}
	defer f.disk.leave()
	if f.disk.failed("sync", f.name, sync()) {
		return f.answer()
	}
	if f.isManifest && f.disk.failed("watermark", f.name, f.disk.watermark.recordManifest(f.manifest)) {
		return f.answer()
	}
	return nil
}

func (f *diskFile) SyncTo(length int64) (fullSync bool, err error) {
	if f.disk.enter() {
		defer f.disk.leave()
		fullSync, err = f.File.SyncTo(length)
		if !f.disk.failed("sync", f.name, err) {
			return fullSync, nil
		}
	}
	return false, f.answer()
}

// Preallocate is a hint: a file system that does not support it still stores the data, and a full one fails again at
// the write.
func (f *diskFile) Preallocate(offset, length int64) error {
	if f.disk.enter() {
		defer f.disk.leave()
		_ = f.File.Preallocate(offset, length)
	}
	return nil
}

func (f *diskFile) Close() error {
	if f.disk.failed("close", f.name, f.File.Close()) {
		return f.answer()
	}
	return nil
}

// Stat is called for a reused log, where an error would be fatal.
func (f *diskFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil && f.disk.failed("stat", f.name, err) {
		return f.disk.memory.Stat(f.disk.dir)
	}
	return info, nil
}
