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

// watermark records how far the journal is durable, in a file beside the database: the highest acknowledged revision,
// and the state of the list of the database's files (its MANIFEST) at its last sync.
//
// Pebble takes the first unreadable chunk of its newest log, and of its MANIFEST, for the point of a power cut,
// unless a later chunk proves otherwise. Often no chunk does: the offsets in the chunks lag behind the synced part,
// the last block is never vouched for, and a MANIFEST has no such offsets at all (cockroachdb/pebble#4617). So a
// flipped bit there would silently remove everything after it. Everything below the watermark must still exist, so
// the two cases can be distinguished.
//
// The file is overwritten in place, without a sync of its own. That is enough: it is written after the syncs that it
// records, so every surviving version of it is true, and the death of the process loses nothing. The two slots are
// written alternately; a torn one is ignored.
//
// A revision is recorded only while the directory belongs to the journal (see dirLock). By then the recorded data has
// been synced, so a process that takes the directory over later reads it.
type watermark struct {
	files  vfs.FS
	path   string
	verify func() error // nil if the watermark is only read

	// acknowledged is the highest revision that may be recorded next.
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

// manifestState is the synced prefix of the MANIFEST with this number.
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

// openWatermark reads the watermark in dir. found is false if there is no readable watermark; it then claims nothing.
// The file is not written before the first revision is recorded.
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

// knows reports whether the watermark has a synced state of the MANIFEST at path.
func (w *watermark) knows(path string) bool {
	number, ok := manifestNumber(w.files.PathBase(path))
	return ok && number == w.written.manifest.number && w.written.manifest.length > 0
}

// checkManifest compares the MANIFEST at path with its recorded state.
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
		return journal.Damaged(0, "%s is truncated: %d bytes of at least %d", path, n, want.length)
	}
	if hash.Sum32() != want.checksum {
		return journal.Damaged(0, "%s has checksum %08x, want %08x", path, hash.Sum32(), want.checksum)
	}
	return nil
}

// checkRevision compares the last revision found with the highest acknowledged one.
func (w *watermark) checkRevision(last uint64) error {
	if last < w.written.revision {
		return journal.Damaged(last+1, "record is missing, and so are all up to revision %d, which was acknowledged", w.written.revision)
	}
	return nil
}

// recordRevision records that all records up to revision are durable.
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
	// One write serves all callers that wait for the lock.
	next := w.written
	next.revision = w.acknowledged.Load()
	return w.writeLocked(next)
}

// recordManifest records a synced state of a MANIFEST.
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

// dropManifest removes, durably, the recorded state of a MANIFEST that is not the current one. If a power cut removes
// a MANIFEST, its number is used again.
func (w *watermark) dropManifest() error {
	if err := w.recordManifest(manifestState{}); err != nil {
		return journal.Refused(err)
	}
	return w.file.Sync()
}

// close makes the last recorded state durable if sync is set.
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
