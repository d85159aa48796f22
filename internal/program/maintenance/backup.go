package maintenance

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/annexapi/annex/store"
)

// docs/formats/backup.md describes the file format.
const (
	backupMagic   = "AnnexBkp"
	backupVersion = 1

	blockHeader  = 'H'
	blockValue   = 'V'
	blockTrailer = 'T'
	blockError   = 'E'

	blockOverhead = 1 + 4 + 4
	valueFixed    = 2 + 8 + 8 + 4
	trailerLength = 8 + 8 + sha256.Size

	// maxBlock bounds the memory that a reader allocates for a damaged length.
	maxBlock = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header describes the content of a backup.
type Header struct {
	// Server and Version are the server's name and the program's version.
	Server  string    `json:"server"`
	Version string    `json:"version"`
	Created time.Time `json:"created"`
	// Storages are the backed-up storages; values refer to them by index.
	Storages []HeaderStorage `json:"storages"`
	// Resources are the resources that the server knew at the time of the backup.
	Resources []HeaderResource `json:"resources"`
}

// HeaderStorage is a storage in a backup.
type HeaderStorage struct {
	// Name is the server's name for the storage, such as embedded.
	Name string `json:"name"`
	// Revision is the revision of the snapshot.
	Revision uint64 `json:"revision"`
	// ContextPrefix followed by a value's key is the authenticated data of an encrypted value.
	ContextPrefix string `json:"contextPrefix,omitempty"`
}

// HeaderResource is a resource in a backup.
type HeaderResource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	Prefix   string `json:"prefix"`
}

// ErrBackup marks an unusable backup: a damaged or truncated file, a newer format, or a file that is no backup.
var ErrBackup = errors.New("unusable backup")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBackup, fmt.Errorf(format, args...))
}

// Writer writes a backup.
type Writer struct {
	to     *bufio.Writer
	sum    hash.Hash
	values uint64
	bytes  uint64
	buffer []byte
}

// NewWriter begins a backup by writing its header.
func NewWriter(to io.Writer, header Header) (*Writer, error) {
	w := &Writer{sum: sha256.New()}
	w.to = bufio.NewWriterSize(to, 1<<20)
	preamble := binary.BigEndian.AppendUint32([]byte(backupMagic), backupVersion)
	data, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("encode the header of a backup: %w", err)
	}
	w.sum.Write(preamble)
	if _, err := w.to.Write(preamble); err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	return w, w.block(blockHeader, data)
}

func (w *Writer) block(kind byte, payload []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
	tail := binary.BigEndian.AppendUint32(nil, crc)
	for _, part := range [][]byte{head, payload, tail} {
		w.sum.Write(part)
		if _, err := w.to.Write(part); err != nil {
			return fmt.Errorf("write backup: %w", err)
		}
	}
	return nil
}

// Add adds a value. storage is the index of its storage in the header.
func (w *Writer) Add(storage int, v store.Value) error {
	var expires int64
	if !v.Expires.IsZero() {
		expires = v.Expires.UnixMicro()
	}
	b := binary.BigEndian.AppendUint16(w.buffer[:0], uint16(storage))
	b = binary.BigEndian.AppendUint64(b, v.Revision)
	b = binary.BigEndian.AppendUint64(b, uint64(expires))
	b = binary.BigEndian.AppendUint32(b, uint32(len(v.Key)))
	b = append(b, v.Key...)
	b = append(b, v.Data...)
	w.buffer = b
	if len(b) > maxBlock {
		return fmt.Errorf("write backup: the object at %s has %d bytes", v.Key, len(v.Data))
	}
	w.values++
	w.bytes += uint64(len(v.Data))
	return w.block(blockValue, b)
}

// endedEarly is the reason, recorded by the writer, why a backup has no trailer.
type endedEarly string

func (e endedEarly) Error() string { return string(e) }

// Fail ends a backup that cannot be finished, and records the reason in it.
func (w *Writer) Fail(reason error) error {
	if err := w.block(blockError, []byte(reason.Error())); err != nil {
		return err
	}
	if err := w.to.Flush(); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// Finish writes the trailer. A backup without a trailer is unusable.
func (w *Writer) Finish() error {
	b := binary.BigEndian.AppendUint64(nil, w.values)
	b = binary.BigEndian.AppendUint64(b, w.bytes)
	if err := w.block(blockTrailer, w.sum.Sum(b)); err != nil {
		return err
	}
	if err := w.to.Flush(); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// Reader reads a backup. The values are verified only when Next has returned io.EOF: until then, the backup may
// turn out to be truncated or damaged.
type Reader struct {
	Header Header

	from   *bufio.Reader
	sum    hash.Hash
	values uint64
	bytes  uint64
}

// NewReader reads the header of a backup. Its errors match ErrBackup, except for errors of from.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{from: bufio.NewReaderSize(from, 1<<20), sum: sha256.New()}
	preamble := make([]byte, len(backupMagic)+4)
	if _, err := io.ReadFull(r.from, preamble); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, unusable("not a backup, or too short")
		}
		return nil, fmt.Errorf("read backup: %w", err)
	}
	if string(preamble[:len(backupMagic)]) != backupMagic {
		return nil, unusable("not a backup: storage backup did not create this file")
	}
	if version := binary.BigEndian.Uint32(preamble[len(backupMagic):]); version != backupVersion {
		return nil, unusable(
			"unsupported format %d, this program supports only %d: use the program that wrote the backup, or a newer one",
			version,
			backupVersion,
		)
	}
	r.sum.Write(preamble)
	kind, payload, err := r.block()
	switch {
	case err != nil:
		return nil, err
	case kind != blockHeader:
		return nil, unusable("it has no header")
	}
	if err := json.Unmarshal(payload, &r.Header); err != nil {
		return nil, unusable("its header: %w", err)
	}
	return r, nil
}

// block reads one block. The caller owns the payload.
func (r *Reader) block() (kind byte, payload []byte, err error) {
	head := make([]byte, 5)
	if err := r.read(head); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > maxBlock {
		return 0, nil, unusable("damaged after %d objects: a block of %d bytes", r.values, length)
	}
	payload = make([]byte, length)
	if err := r.read(payload); err != nil {
		return 0, nil, err
	}
	tail := make([]byte, 4)
	if err := r.read(tail); err != nil {
		return 0, nil, err
	}
	crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
	if want := binary.BigEndian.Uint32(tail); crc != want {
		return 0, nil, unusable("damaged after %d objects: a block has checksum %08x, want %08x", r.values, crc, want)
	}
	if head[0] != blockTrailer {
		for _, part := range [][]byte{head, payload, tail} {
			r.sum.Write(part)
		}
	}
	return head[0], payload, nil
}

func (r *Reader) read(p []byte) error {
	_, err := io.ReadFull(r.from, p)
	switch {
	case err == nil:
		return nil
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return unusable("the backup is truncated after %d objects", r.values)
	}
	return fmt.Errorf("read backup: %w", err)
}

// Next returns the next value and the index of its storage in the header. At the end it verifies the trailer and
// returns io.EOF.
func (r *Reader) Next() (storage int, v store.Value, err error) {
	kind, payload, err := r.block()
	if err != nil {
		return 0, store.Value{}, err
	}
	switch kind {
	case blockTrailer:
		return 0, store.Value{}, r.finish(payload)
	case blockError:
		return 0, store.Value{}, unusable("the backup ends after %d objects: %w", r.values, endedEarly(payload))
	case blockValue:
	default:
		return 0, store.Value{}, unusable("a block of the unknown kind %q after %d objects", kind, r.values)
	}
	if len(payload) < valueFixed {
		return 0, store.Value{}, unusable("a value of %d bytes after %d objects", len(payload), r.values)
	}
	keyLength := binary.BigEndian.Uint32(payload[18:])
	storage = int(binary.BigEndian.Uint16(payload))
	if uint64(keyLength) > uint64(len(payload)-valueFixed) || storage >= len(r.Header.Storages) {
		return 0, store.Value{}, unusable("an inconsistent value after %d objects", r.values)
	}
	v = store.Value{
		Key:      string(payload[valueFixed:][:keyLength]),
		Revision: binary.BigEndian.Uint64(payload[2:]),
		Data:     payload[valueFixed:][keyLength:],
	}
	v.Context = []byte(r.Header.Storages[storage].ContextPrefix + v.Key)
	if expires := int64(binary.BigEndian.Uint64(payload[10:])); expires != 0 {
		v.Expires = time.UnixMicro(expires).UTC()
	}
	r.values++
	r.bytes += uint64(len(v.Data))
	return storage, v, nil
}

func (r *Reader) finish(trailer []byte) error {
	if len(trailer) != trailerLength {
		return unusable("a trailer of %d bytes", len(trailer))
	}
	values, bytes := binary.BigEndian.Uint64(trailer), binary.BigEndian.Uint64(trailer[8:])
	if values != r.values || bytes != r.bytes {
		return unusable("the backup has %d objects of %d bytes, but its trailer has %d of %d", r.values, r.bytes, values, bytes)
	}
	if string(r.sum.Sum(nil)) != string(trailer[16:]) {
		return unusable("the SHA-256 of the backup does not match its trailer")
	}
	if n, err := r.from.Read(make([]byte, 1)); n > 0 {
		return unusable("unexpected data after the end of the backup")
	} else if err != nil && err != io.EOF {
		return fmt.Errorf("read backup: %w", err)
	}
	return io.EOF
}

// Contents summarizes a backup.
type Contents struct {
	Header
	Objects, Bytes uint64
}

// Check reads a backup to its end, verifies it and returns its summary.
func Check(from io.Reader) (Contents, error) {
	r, err := NewReader(from)
	for err == nil {
		_, _, err = r.Next()
	}
	if err != io.EOF {
		return Contents{}, err
	}
	return Contents{Header: r.Header, Objects: r.values, Bytes: r.bytes}, nil
}
