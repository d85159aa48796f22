package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// formatVersion is that of records and of the state.
const formatVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digest is the SHA-256 of a file's content; the zero digest is that of no file.
type digest [sha256.Size]byte

func digestOf(data []byte) digest { return sha256.Sum256(data) }

// MarshalText implements encoding.TextMarshaler.
func (d digest) MarshalText() ([]byte, error) {
	if d == (digest{}) {
		return []byte{}, nil
	}
	return hex.AppendEncode(nil, d[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *digest) UnmarshalText(text []byte) error {
	*d = digest{}
	if len(text) == 0 {
		return nil
	}
	if hex.DecodedLen(len(text)) != len(d) {
		return fmt.Errorf("%q is no SHA-256", text)
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// object is what a record tells of the object file.
type object struct {
	// Suffix of the file's name; empty if the key has no object file.
	Suffix string `json:"suffix,omitempty"`
	// SHA256 is that of the file while nobody has touched it.
	SHA256 digest `json:"sha256,omitzero"`
	// Says is the digest of what the server would have written. It is another one
	// where a person's way of writing the same was kept.
	Says digest `json:"says,omitzero"`
	// Replaces is the digest of the file that this one replaces. A file that still
	// has it after a crash is one that the server did not get to replace.
	Replaces digest `json:"replaces,omitzero"`
}

// sideRecord is the content of a side file.
type sideRecord struct {
	journal.Record
	object object
}

// header is the part of a side file that is JSON.
type header struct {
	Key       string    `json:"key"`
	Revision  uint64    `json:"revision"`
	Previous  uint64    `json:"previous,omitempty"`
	Deleted   bool      `json:"deleted,omitempty"`
	Committed time.Time `json:"committed"`
	Expires   time.Time `json:"expires,omitzero"`
	File      object    `json:"file,omitzero"`
}

const (
	recordMagic = "annex-record"
	stateMagic  = "annex-state"
)

// encode returns the bytes of a side file.
func (r sideRecord) encode() ([]byte, error) {
	head, err := json.Marshal(header{
		Key: r.Key, Revision: r.Revision, Previous: r.Previous, Deleted: r.Deleted,
		Committed: r.Committed, Expires: r.Expires, File: r.object,
	})
	if err != nil {
		return nil, err
	}
	return seal(recordMagic, append(append(head, '\n'), r.Value...)), nil
}

// decodeRecord reads a side file back.
func decodeRecord(data []byte) (sideRecord, error) {
	body, err := unseal(recordMagic, data)
	if err != nil {
		return sideRecord{}, err
	}
	head, value, found := bytes.Cut(body, []byte("\n"))
	if !found {
		return sideRecord{}, errors.New("the header does not end")
	}
	var h header
	if err := strict(head, &h); err != nil {
		return sideRecord{}, fmt.Errorf("header: %w", err)
	}
	if h.Revision == 0 {
		return sideRecord{}, errors.New("revision 0")
	}
	r := sideRecord{object: h.File, Record: journal.Record{
		Revision: h.Revision, Previous: h.Previous, Deleted: h.Deleted, Key: h.Key,
		Committed: h.Committed.UTC(), Expires: h.Expires,
	}}
	if !r.Deleted {
		r.Value = value
	}
	return r, nil
}

// state is what has to be known of a journal beside its records.
type state struct {
	Identity string `json:"identity"`
	// Ceiling is a revision that none given out is above.
	Ceiling uint64 `json:"ceiling"`
	// Finished is a revision up to which all object files had been written.
	Finished uint64 `json:"finished"`
	// Closed says that the journal was closed in order: the ceiling is the last
	// revision then.
	Closed bool `json:"closed"`
}

func (s state) encode() ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return seal(stateMagic, append(body, '\n')), nil
}

func decodeState(data []byte) (s state, err error) {
	body, err := unseal(stateMagic, data)
	if err != nil {
		return state{}, err
	}
	return s, strict(body, &s)
}

func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// newerFormatError says that a file was written by a later version.
type newerFormatError struct{ version int }

func (e newerFormatError) Error() string {
	return fmt.Sprintf("it is in format %d, this program knows %d: use a newer one", e.version, formatVersion)
}

// seal puts a line with the format and the checksum of all that follows it before
// a body.
func seal(magic string, body []byte) []byte {
	line := fmt.Sprintf("%s %d %d %08x\n", magic, formatVersion, len(body), crc32.Checksum(body, castagnoli))
	return append([]byte(line), body...)
}

func unseal(magic string, data []byte) ([]byte, error) {
	first, content, found := bytes.Cut(data, []byte("\n"))
	if !found {
		return nil, errors.New("the first line is missing")
	}
	line := string(first[:min(len(first), 100)])
	var name string
	var version, length int
	var sum uint32
	if _, err := fmt.Sscanf(line, "%s %d %d %08x", &name, &version, &length, &sum); err != nil || name != magic {
		return nil, errors.New("the first line is none that was written here")
	}
	if version > formatVersion {
		return nil, newerFormatError{version}
	}
	if got := crc32.Checksum(content, castagnoli); len(content) != length || got != sum {
		return nil, fmt.Errorf("%d bytes with checksum %08x, want %d with %08x", len(content), got, length, sum)
	}
	// Nothing in the line may be read in two ways.
	if line != fmt.Sprintf("%s %d %d %08x", magic, formatVersion, length, sum) {
		return nil, errors.New("the first line is none that was written here")
	}
	return content, nil
}
