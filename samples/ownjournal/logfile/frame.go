package logfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// A log is a header and frames.
//
//	header  magic "annexlg1" | durable uint64 | CRC-32C of both
//	frame   magic "\xf5frm" | length of the body uint32 | CRC-32C of length and body | body
//	body    durable uvarint | 'r' record  or  't' trim
//
// Fixed numbers are little endian. Durable is the number of bytes of the file that were known to be on disk when the
// frame was written. Unreadable bytes below any durable were acknowledged once, so they are damage. Unreadable bytes
// above all of them are the end of a log that a crash has cut off.
const (
	logMagic   = "annexlg1"
	headerSize = 8 + 8 + 4

	frameMagic = "\xf5frm"
	prefixSize = 4 + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeHeader(durable int64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(logMagic), uint64(durable))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeHeader(log []byte) (durable int64, ok bool) {
	if len(log) < headerSize || !bytes.HasPrefix(log, []byte(logMagic)) {
		return 0, false
	}
	sum := binary.LittleEndian.Uint32(log[headerSize-4:])
	return int64(binary.LittleEndian.Uint64(log[8:])), sum == crc32.Checksum(log[:headerSize-4], castagnoli)
}

// trim is a call of Trim, with the last revision appended before it.
type trim struct {
	compacted, last uint64
	drop            []uint64
}

// frame is the content of a frame: a record, or a trim if that is not nil.
type frame struct {
	durable int64
	record  journal.Record
	trim    *trim
}

func (f frame) encode() []byte {
	b := append(make([]byte, 0, prefixSize+64+len(f.record.Key)+len(f.record.Value)), frameMagic...)
	b = append(b, make([]byte, prefixSize-len(frameMagic))...)
	b = binary.AppendUvarint(b, uint64(f.durable))
	if f.trim != nil {
		b = append(b, 't')
		for _, number := range append([]uint64{f.trim.compacted, f.trim.last}, f.trim.drop...) {
			b = binary.AppendUvarint(b, number)
		}
	} else {
		r := f.record
		var deleted uint64
		if r.Deleted {
			deleted = 1
		}
		b = append(b, 'r')
		b = binary.AppendUvarint(b, r.Revision)
		b = binary.AppendUvarint(b, r.Previous)
		b = binary.AppendUvarint(b, deleted)
		b = appendTime(b, r.Committed)
		b = appendTime(b, r.Expires)
		b = binary.AppendUvarint(b, uint64(len(r.Key)))
		b = append(b, r.Key...)
		b = append(b, r.Value...)
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-prefixSize))
	binary.LittleEndian.PutUint32(b[8:], checksum(b))
	return b
}

func checksum(frame []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[4:8], castagnoli), castagnoli, frame[prefixSize:])
}

// appendTime distinguishes the zero time from all others.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	return binary.AppendVarint(append(b, 1), t.UnixMicro())
}

var errFrame = errors.New("it has no intact frame")

// decodeFrame decodes the frame at the beginning of log, and returns its size.
func decodeFrame(log []byte) (f frame, size int, err error) {
	if len(log) < prefixSize || !bytes.HasPrefix(log, []byte(frameMagic)) {
		return frame{}, 0, errFrame
	}
	length := int64(binary.LittleEndian.Uint32(log[4:]))
	if length > int64(len(log)-prefixSize) {
		return frame{}, 0, errFrame
	}
	size = prefixSize + int(length)
	if binary.LittleEndian.Uint32(log[8:]) != checksum(log[:size]) {
		return frame{}, 0, errFrame
	}
	r := reader{rest: log[prefixSize:size]}
	f.durable = int64(r.uvarint())
	switch kind := r.next(1); string(kind) {
	case "t":
		f.trim = &trim{compacted: r.uvarint(), last: r.uvarint()}
		for len(r.rest) > 0 {
			f.trim.drop = append(f.trim.drop, r.uvarint())
		}
	case "r":
		f.record.Revision, f.record.Previous, f.record.Deleted = r.uvarint(), r.uvarint(), r.uvarint() == 1
		f.record.Committed, f.record.Expires = r.time(), r.time()
		f.record.Key = string(r.next(r.uvarint()))
		f.record.Value = bytes.Clone(r.rest)
	default:
		r.failed = true
	}
	if r.failed {
		return frame{}, 0, errFrame // written by another program, since its checksum is right
	}
	return f, size, nil
}

// reader parses a body. An invalid body sets failed and leaves nothing to read.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) next(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.rest, r.failed = nil, true
		return nil
	}
	next := r.rest[:n]
	r.rest = r.rest[n:]
	return next
}

func (r *reader) uvarint() uint64 {
	number, n := binary.Uvarint(r.rest)
	r.next(size(n))
	return number
}

func (r *reader) time() time.Time {
	if string(r.next(1)) != "\x01" {
		return time.Time{}
	}
	micro, n := binary.Varint(r.rest)
	r.next(size(n))
	return time.UnixMicro(micro).UTC()
}

// size returns a decoded number as a size; for an invalid number, it is larger than any body.
func size(n int) uint64 {
	if n <= 0 {
		return math.MaxUint64
	}
	return uint64(n)
}
