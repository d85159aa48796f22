package files

import (
	"encoding/binary"
	"fmt"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// entry is the state of a key that has, or had, an object file. Run's goroutine changes it with mu held, except
// newest and deleted.
type entry struct {
	key   string
	place place

	newest  uint64 // the revision of the newest durable record, 0 if there is none
	deleted bool   // by that record

	known fileState
	// stamp is the stamp of the object file when it last agreed with known.
	stamp stamp
	// base is the content of the file before a pending edit, if its record may be compacted meanwhile.
	base []byte
	// tries counts failed writes of the file in a row.
	tries int
}

// name returns the name of the object file.
func (e *entry) name() string { return e.place.stem + yamlSuffix }

// note returns the note that makes known durable.
func (e *entry) note(k fileState) embedded.Note {
	return embedded.Note{Name: knownNotes + e.key, Value: k.encode()}
}

// exists reports whether there is an object.
func (e *entry) exists() bool { return e.newest != 0 && !e.deleted }

// fileState is the state of an object file that its note makes durable.
type fileState struct {
	// revision is the revision of the record that the file shows, or a later one with the same visible content.
	revision uint64
	// file is the hash of the file as the server, or a person whose edit was accepted, left it; zero if there should
	// be no file.
	file digest
	// next is the hash of the file that is about to replace it, zero if there is none.
	next digest
	// The hash of the file that the server would have written for that record. It is zero if the content of the file
	// differs from that.
	says digest
	// written reports that there is a note with the document, because a person wrote it.
	written bool
}

// has reports whether a file with this hash is untouched by people.
func (k fileState) has(hash digest) bool {
	return hash != (digest{}) && (hash == k.file || hash == k.next)
}

// A note is named after the key, with one letter before it. The letter stands for known, or for the document that a
// person wrote, which is kept as long as it is in the file. The next edit is compared with that document, because it
// may differ from the file that the server would have written.
const (
	knownNotes    = "k"
	documentNotes = "d"
)

// noteVersion is the first byte of the note of known.
const noteVersion = 1

// knownLength is version, flags, revision and three hashes.
const knownLength = 1 + 1 + 8 + 3*len(digest{})

func (k fileState) encode() []byte {
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

func decodeKnown(data []byte) (k fileState, err error) {
	if len(data) != knownLength || data[0] != noteVersion || data[1] > 1 {
		return fileState{}, fmt.Errorf("a note of %d bytes has an unsupported version", len(data))
	}
	k.written = data[1] == 1
	k.revision = binary.BigEndian.Uint64(data[2:])
	data = data[10:]
	for _, d := range []*digest{&k.file, &k.next, &k.says} {
		data = data[copy(d[:], data):]
	}
	return k, nil
}

// readNotes reads the notes of all object files.
func (j *Journal) readNotes() error {
	return j.records.Load().Notes(knownNotes, func(n embedded.Note) error {
		key := n.Name[len(knownNotes):]
		at, placed := j.layout.place(key)
		if !placed {
			return nil // its resource is not in files any more
		}
		k, err := decodeKnown(n.Value)
		if err != nil {
			return journal.Damaged(0, "note about the file of %q: %w", key, err)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.know(&entry{key: key, place: at, known: k})
		return nil
	})
}
