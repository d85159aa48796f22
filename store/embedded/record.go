package embedded

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// The encodings below are drawn in docs/formats/embedded.md, and TestEncodings_bytes pins them. A change to any of them
// needs a new version byte, so that this program still reads what older ones have written, and a new formatVersion, so
// that an older program refuses the journal instead of reporting damage. A program raises the format of a journal in the
// step that writes the first such encoding; records that are there stay as they are.

const (
	recordVersion = 1
	// attributedVersion is the version of a record with a user: the length of the name and the name follow the key.
	attributedVersion = 2

	flagDeleted = 1 << 0
	flagExpires = 1 << 1
	knownFlags  = flagDeleted | flagExpires

	mostUser = 1<<16 - 1

	// recordHeader is version, flags, committed, expires, previous, key length.
	recordHeader   = 1 + 1 + 8 + 8 + 8 + 4
	checksumLength = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordPrefix and recordLimit bound the keys of all records.
var (
	recordPrefix = []byte("h/")
	recordLimit  = []byte("h0")
)

const recordKeyLength = 2 + 8

func recordKey(revision uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, recordKeyLength), recordPrefix...), revision)
}

// revisionOf is the inverse of recordKey; ok is false for any other key.
func revisionOf(key []byte) (revision uint64, ok bool) {
	if len(key) != recordKeyLength {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[len(recordPrefix):]), true
}

// checksum covers the revision as well as the bytes, so that a sound record under the wrong key is detected.
func checksum(revision uint64, data []byte) uint32 {
	var seed [8]byte
	binary.BigEndian.PutUint64(seed[:], revision)
	return crc32.Update(crc32.Checksum(seed[:], castagnoli), castagnoli, data)
}

func recordLength(r journal.Record) int {
	return recordHeader + len(r.Key) + userLength(r) + len(r.Value) + checksumLength
}

// userLength returns the length of the user in a record, 0 without one.
func userLength(r journal.Record) int {
	if r.User == "" {
		return 0
	}
	return 2 + min(len(r.User), mostUser)
}

// encodeRecord fills buf, which has the length recordLength(r).
func encodeRecord(buf []byte, r journal.Record) {
	var flags byte
	var expires int64
	if r.Deleted {
		flags |= flagDeleted
	}
	if !r.Expires.IsZero() {
		flags |= flagExpires
		expires = r.Expires.UnixMicro()
	}
	buf[0] = recordVersion
	buf[1] = flags
	binary.BigEndian.PutUint64(buf[2:], uint64(r.Committed.UnixMicro()))
	binary.BigEndian.PutUint64(buf[10:], uint64(expires))
	binary.BigEndian.PutUint64(buf[18:], r.Previous)
	binary.BigEndian.PutUint32(buf[26:], uint32(len(r.Key)))
	n := recordHeader
	n += copy(buf[n:], r.Key)
	if r.User != "" {
		buf[0] = attributedVersion
		user := r.User[:min(len(r.User), mostUser)]
		binary.BigEndian.PutUint16(buf[n:], uint16(len(user)))
		n += 2
		n += copy(buf[n:], user)
	}
	n += copy(buf[n:], r.Value)
	binary.BigEndian.PutUint32(buf[n:], checksum(r.Revision, buf[:n]))
}

// decodeRecord returns a record that shares nothing with data. Each value has an allocation of its own, because the
// core releases values one by one, and any one of them would keep a shared buffer alive.
func decodeRecord(revision uint64, data []byte) (journal.Record, error) {
	r, err := recordIn(revision, data)
	if r.Value != nil {
		r.Value = append(make([]byte, 0, len(r.Value)), r.Value...)
	}
	return r, err
}

// recordIn is decodeRecord without the copy: the value of the record is a part of data.
func recordIn(revision uint64, data []byte) (journal.Record, error) {
	if len(data) < recordHeader+checksumLength {
		return journal.Record{}, journal.Damaged(revision, "%d bytes are too short for a record", len(data))
	}
	body, sum := data[:len(data)-checksumLength], binary.BigEndian.Uint32(data[len(data)-checksumLength:])
	if got := checksum(revision, body); got != sum {
		return journal.Record{}, journal.Damaged(revision, "checksum is %08x, want %08x", got, sum)
	}
	if body[0] != recordVersion && body[0] != attributedVersion {
		return journal.Record{}, journal.Damaged(revision, "record format %d is unknown", body[0])
	}
	flags := body[1]
	if flags&^knownFlags != 0 {
		return journal.Record{}, journal.Damaged(revision, "record flags %#x are unknown", flags)
	}
	keyLength := uint64(binary.BigEndian.Uint32(body[26:]))
	if keyLength > uint64(len(body)-recordHeader) {
		return journal.Record{}, journal.Damaged(revision, "key of %d bytes exceeds the record", keyLength)
	}
	r := journal.Record{
		Revision:  revision,
		Previous:  binary.BigEndian.Uint64(body[18:]),
		Deleted:   flags&flagDeleted != 0,
		Key:       string(body[recordHeader : recordHeader+keyLength]),
		Committed: time.UnixMicro(int64(binary.BigEndian.Uint64(body[2:]))).UTC(),
	}
	if flags&flagExpires != 0 {
		r.Expires = time.UnixMicro(int64(binary.BigEndian.Uint64(body[10:]))).UTC()
	}
	rest := body[recordHeader+keyLength:]
	if body[0] == attributedVersion {
		if len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) > len(rest)-2 {
			return journal.Record{}, journal.Damaged(revision, "the user exceeds the record")
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		r.User, rest = string(rest[2:n]), rest[n:]
	}
	if value := rest; len(value) > 0 || !r.Deleted {
		r.Value = value[:len(value):len(value)]
	}
	return r, nil
}

// formatVersion is the version of the journal as a whole: its keys and their meaning together. A journal has
// plainVersion until the first record with a user, or the first key of a shelf, is written, in the same step: programs
// that know neither read journals without them.
const formatVersion, plainVersion = 2, 1

var formatKey = []byte("m/format")

// format identifies the version of the database, and the database itself.
type format struct {
	version  uint32
	identity [16]byte
}

const formatLength = 4 + 16 + checksumLength

func (f format) encode() []byte {
	buf := binary.BigEndian.AppendUint32(make([]byte, 0, formatLength), f.version)
	buf = append(buf, f.identity[:]...)
	return binary.BigEndian.AppendUint32(buf, crc32.Checksum(buf, castagnoli))
}

// check returns an error for a journal of a newer program.
func (f format) check() error {
	if f.version > formatVersion {
		return fmt.Errorf("the journal has format %d, this program supports only %d: use the program that wrote it, or a newer one",
			f.version, formatVersion)
	}
	return nil
}

// decodeFormat accepts the longer encodings of later versions, so that these can be rejected by their number.
func decodeFormat(data []byte) (format, error) {
	if len(data) < formatLength {
		return format{}, journal.Damaged(0, "journal format of %d bytes", len(data))
	}
	body, sum := data[:len(data)-checksumLength], binary.BigEndian.Uint32(data[len(data)-checksumLength:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return format{}, journal.Damaged(0, "journal format has checksum %08x, want %08x", got, sum)
	}
	f := format{version: binary.BigEndian.Uint32(body), identity: [16]byte(body[4:20])}
	if f.version == 0 {
		return format{}, journal.Damaged(0, "journal format 0 is unknown")
	}
	return f, nil
}

const boundsVersion = 1

var boundsKey = []byte("m/bounds")

// bounds define the records that must exist: all from first on, except for dropped ones, none of which is above
// dropped.
type bounds struct {
	first     uint64 // revision of the first record ever appended, 0 if none or jumped to
	compacted uint64 // as last given to Trim
	dropped   uint64 // highest revision ever dropped or jumped over, 0 if none
}

const boundsLength = 1 + 8 + 8 + 8 + checksumLength

func (b bounds) encode() []byte {
	buf := append(make([]byte, 0, boundsLength), boundsVersion)
	buf = binary.BigEndian.AppendUint64(buf, b.first)
	buf = binary.BigEndian.AppendUint64(buf, b.compacted)
	buf = binary.BigEndian.AppendUint64(buf, b.dropped)
	return binary.BigEndian.AppendUint32(buf, crc32.Checksum(buf, castagnoli))
}

func decodeBounds(data []byte) (bounds, error) {
	if len(data) != boundsLength || data[0] != boundsVersion {
		return bounds{}, journal.Damaged(0, "journal bounds of %d bytes are unknown", len(data))
	}
	body, sum := data[:boundsLength-checksumLength], binary.BigEndian.Uint32(data[boundsLength-checksumLength:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return bounds{}, journal.Damaged(0, "journal bounds have checksum %08x, want %08x", got, sum)
	}
	return bounds{
		first:     binary.BigEndian.Uint64(body[1:]),
		compacted: binary.BigEndian.Uint64(body[9:]),
		dropped:   binary.BigEndian.Uint64(body[17:]),
	}, nil
}

// contiguousFrom returns the lowest revision from which on no record may be missing.
func (b bounds) contiguousFrom() uint64 {
	return max(b.first, b.dropped+1)
}
