package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// watermark is how far the journal is durable, kept beside the database: the highest
// revision acknowledged, and the state of the list of the database's files (its
// MANIFEST) when that was last synced.
//
// Pebble takes the first unreadable chunk of its newest log, and of its MANIFEST,
// for the point where the power was cut, unless a later chunk proves otherwise.
// Often none does (the offsets in the chunks lag behind what was synced, the last
// block is never vouched for, and a MANIFEST has no such offsets at all,
// cockroachdb/pebble#4617): a bad bit there would silently take everything after
// it. What is below the watermark must still be there, so the cases can be told apart.
//
// The file is overwritten in place, without a sync of its own. That is enough: it
// is written after the syncs it speaks of, so any version of it that survives is
// true, and a process that dies takes nothing with it. The two slots are written
// alternately; a torn one is ignored.
//
// A promise is made only while the directory is the journal's own (see dirLock): by
// then what it speaks of has been synced, so that a process that takes the directory
// over afterwards reads it.
type watermark struct {
	files  vfs.FS
	path   string
	verify func() error // nil for one that is only read

	// acknowledged is the highest revision that may be promised next.
	acknowledged atomic.Uint64

	mu       sync.Mutex
	file     vfs.File
	sequence uint64
	written  slot
}

// slot is one of the two places in the file, which are written alternately.
type slot struct {
	revision uint64 // highest revision acknowledged, 0 if none
	manifest manifestState
}

// manifestState is a prefix of the MANIFEST with this number that was synced.
type manifestState struct {
	number   uint64
	length   uint64
	checksum uint32
}

const (
	watermarkFile   = "WITNESS"
	watermarkMagic  = 0x41785731 // "AxW1"
	slotLength      = 4 + 8 + 8 + 8 + 8 + 4 + checksumLength
	slotDistance    = 4096
	watermarkLength = slotDistance + slotLength
)

// openWatermark reads the watermark in dir. found is false if there is none, or none
// that can be read: it then has nothing to say. Nothing is written before the
// first promise.
func openWatermark(files vfs.FS, dir string, verify func() error) (w *watermark, found bool, err error) {
	w = &watermark{files: files, path: files.PathJoin(dir, watermarkFile), verify: verify}
	file, err := files.Open(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return w, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	data := make([]byte, watermarkLength)
	if _, err := io.ReadFull(file, data); err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, false, fmt.Errorf("read %s: %w", w.path, err)
	}
	for _, part := range [][]byte{data[:slotLength], data[slotDistance:]} {
		if sequence, content, ok := decodeSlot(part); ok && sequence > w.sequence {
			w.sequence, w.written, found = sequence, content, true
		}
	}
	w.acknowledged.Store(w.written.revision)
	return w, found, nil
}

func encodeSlot(sequence uint64, t slot) []byte {
	buf := binary.BigEndian.AppendUint32(make([]byte, 0, slotLength), watermarkMagic)
	buf = binary.BigEndian.AppendUint64(buf, sequence)
	buf = binary.BigEndian.AppendUint64(buf, t.revision)
	buf = binary.BigEndian.AppendUint64(buf, t.manifest.number)
	buf = binary.BigEndian.AppendUint64(buf, t.manifest.length)
	buf = binary.BigEndian.AppendUint32(buf, t.manifest.checksum)
	return binary.BigEndian.AppendUint32(buf, crc32.Checksum(buf, castagnoli))
}

func decodeSlot(data []byte) (sequence uint64, t slot, ok bool) {
	body, sum := data[:slotLength-checksumLength], binary.BigEndian.Uint32(data[slotLength-checksumLength:])
	if binary.BigEndian.Uint32(body) != watermarkMagic || crc32.Checksum(body, castagnoli) != sum {
		return 0, slot{}, false
	}
	return binary.BigEndian.Uint64(body[4:]), slot{
		revision: binary.BigEndian.Uint64(body[12:]),
		manifest: manifestState{
			number:   binary.BigEndian.Uint64(body[20:]),
			length:   binary.BigEndian.Uint64(body[28:]),
			checksum: binary.BigEndian.Uint32(body[36:]),
		},
	}, true
}

// knows reports whether the watermark has seen the MANIFEST at path.
func (w *watermark) knows(path string) bool {
	number, ok := manifestNumber(w.files.PathBase(path))
	return ok && number == w.written.manifest.number && w.written.manifest.length > 0
}

// checkManifest compares the MANIFEST at path with what was synced of it.
func (w *watermark) checkManifest(path string) error {
	if !w.knows(path) {
		return nil
	}
	want := w.written.manifest
	file, err := w.files.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	hash := crc32.New(castagnoli)
	n, err := io.Copy(hash, io.LimitReader(file, int64(want.length)))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if uint64(n) < want.length {
		return journal.Damaged(0, "%s has lost its end: %d bytes of at least %d", path, n, want.length)
	}
	if hash.Sum32() != want.checksum {
		return journal.Damaged(0, "%s has checksum %08x, want %08x", path, hash.Sum32(), want.checksum)
	}
	return nil
}

// checkRevision compares the last revision found with what was acknowledged.
func (w *watermark) checkRevision(last uint64) error {
	if last < w.written.revision {
		return journal.Damaged(last+1, "record is missing, and so are all up to revision %d, which was acknowledged", w.written.revision)
	}
	return nil
}

// recordRevision notes that all records up to revision are durable.
func (w *watermark) recordRevision(revision uint64) error {
	for {
		highest := w.acknowledged.Load()
		if revision <= highest || w.acknowledged.CompareAndSwap(highest, revision) {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision <= w.written.revision {
		return nil
	}
	// One write speaks for all who wait at the lock.
	next := w.written
	next.revision = w.acknowledged.Load()
	return w.writeLocked(next)
}

// recordManifest notes a synced state of a MANIFEST.
func (w *watermark) recordManifest(state manifestState) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.written
	next.manifest = state
	return w.writeLocked(next)
}

func (w *watermark) writeLocked(next slot) error {
	if err := w.verify(); err != nil {
		return fmt.Errorf("write %s: %w", w.path, err)
	}
	if w.file == nil {
		file, err := w.files.OpenReadWrite(w.path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		w.file = file
	}
	sequence := w.sequence + 1
	if _, err := w.file.WriteAt(encodeSlot(sequence, next), int64(sequence%2)*slotDistance); err != nil {
		return fmt.Errorf("write %s: %w", w.path, err)
	}
	w.sequence, w.written = sequence, next
	return nil
}

// dropManifest takes back, durably, what was said of a MANIFEST that is not the
// current one: the number of a MANIFEST that a power cut took away is given out
// again.
func (w *watermark) dropManifest() error {
	if err := w.recordManifest(manifestState{}); err != nil {
		return journal.Refused(err)
	}
	return w.file.Sync()
}

// close makes the last promise durable if sync is set.
func (w *watermark) close(sync bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	var err error
	if sync {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}
