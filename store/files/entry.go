package files

import (
	"encoding/binary"
	"fmt"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// entry is what is known of a key that has, or had, an object file. Run's goroutine
// changes it with mu held, but for newest and deleted.
type entry struct {
	key   string
	place place

	newest  uint64 // the revision of the newest durable record, 0 if there is none
	deleted bool   // by that record

	known known
	// stamp is that of the object file when it was last known to be as known says.
	stamp stamp
	// base is what the file said before an edit that is waiting, if its record may be
	// compacted away meanwhile.
	base []byte
	// tries counts how often the file could not be written, in a row.
	tries int
}

// name is that of the object file.
func (e *entry) name() string { return e.place.stem + yamlSuffix }

// note is what the journal keeps of what is known.
func (e *entry) note(k known) embedded.Note {
	return embedded.Note{Name: knownNotes + e.key, Value: k.encode()}
}

// exists says whether there is an object.
func (e *entry) exists() bool { return e.newest != 0 && !e.deleted }

// known is what the note of an entry says of its object file.
type known struct {
	// revision is that of the record that the file shows, or a later one that looks
	// the same.
	revision uint64
	// file is the hash of the file as the server, or a person whose edit was taken,
	// left it; zero if there should be none.
	file digest
	// next is the hash of the file that is about to take its place, zero if none is.
	next digest
	// says is the hash of what the server would have written for that record. It is
	// zero if the file says something else.
	says digest
	// written says that there is a note of the document, which a person wrote.
	written bool
}

// has says whether a file with a hash is none that a person has touched.
func (k known) has(hash digest) bool {
	return hash != (digest{}) && (hash == k.file || hash == k.next)
}

// A note is named after the key, and one letter before it: of the known, or of the
// document that a person wrote, for as long as it is in the file. That is what the
// next edit is compared with: it need not say what the server would have written.
const (
	knownNotes    = "k"
	documentNotes = "d"
)

// noteVersion is the first byte of a known's note.
const noteVersion = 1

// knownLength is version, flags, revision and three hashes.
const knownLength = 1 + 1 + 8 + 3*len(digest{})

func (k known) encode() []byte {
	flags := byte(0)
	if k.written {
		flags = 1
	}
	data := append(make([]byte, 0, knownLength), noteVersion, flags)
	data = binary.BigEndian.AppendUint64(data, k.revision)
	data = append(data, k.file[:]...)
	data = append(data, k.next[:]...)
	return append(data, k.says[:]...)
}

func decodeKnown(data []byte) (k known, err error) {
	if len(data) != knownLength || data[0] != noteVersion || data[1] > 1 {
		return known{}, fmt.Errorf("a note of %d bytes is none of this version", len(data))
	}
	k.written = data[1] == 1
	k.revision = binary.BigEndian.Uint64(data[2:])
	data = data[10:]
	for _, d := range []*digest{&k.file, &k.next, &k.says} {
		data = data[copy(d[:], data):]
	}
	return k, nil
}

// readNotes reads what is known of all object files.
func (j *Journal) readNotes() error {
	return j.records.Load().Notes(knownNotes, func(n embedded.Note) error {
		key := n.Name[len(knownNotes):]
		at, placed := j.layout.place(key)
		if !placed {
			return nil // its resource is not in files any more
		}
		k, err := decodeKnown(n.Value)
		if err != nil {
			return journal.Damaged(0, "what is known of the file of %q: %w", key, err)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.know(&entry{key: key, place: at, known: k})
		return nil
	})
}
