package files

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// The first format had no journal, but a file for each record. Opening such a tree builds a journal from the files,
// in a temporary directory that is renamed when it is complete; only then are the files removed. If the process dies
// in between, the conversion begins again.

const (
	recordsV1    = private + "/records"
	recordMagic  = "annex-record"
	recordSuffix = ".record"
	// binarySuffix was the suffix of object files that people could not read.
	binarySuffix = ".bin"
	displacedV1  = ".displaced"
)

// recordV1 is a record of the first format with its description of the object file.
type recordV1 struct {
	journal.Record
	file fileV1
}

type fileV1 struct {
	Suffix   string `json:"suffix"`
	SHA256   digest `json:"sha256"`
	Says     digest `json:"says"`
	Replaces digest `json:"replaces"`
}

// stateV1 is the body of the state in the first format.
type stateV1 struct {
	Identity string `json:"identity"`
	// Ceiling is an upper bound of all revisions in use.
	Ceiling uint64 `json:"ceiling"`
	// Finished is a revision up to which all object files had been written.
	Finished uint64 `json:"finished"`
	Closed   bool   `json:"closed"`
}

// takeOver builds the journal in dir from the files of the first format.
func (j *Journal) takeOver(dir string, options embedded.Options) error {
	state, err := j.stateV1()
	if err != nil {
		return err
	}
	records, err := j.recordsV1()
	if err != nil {
		return err
	}
	if err := j.restoreV1(records); err != nil {
		return err
	}
	under := options.FS
	if under == nil {
		under = vfs.Default
	}
	building := dir + ".unfinished"
	for _, leftover := range []string{building, dir} {
		if err := under.RemoveAll(leftover); err != nil {
			return err
		}
	}
	if err := j.fillFrom(state, records, building, options); err != nil {
		return err
	}
	if err := under.Rename(building, dir); err != nil {
		return err
	}
	return j.files.SyncDir(private)
}

// fillFrom writes records into a new journal. They get revisions above the ceiling, because a journal has no gaps.
func (j *Journal) fillFrom(state stateV1, records []recordV1, dir string, options embedded.Options) (err error) {
	to, err := embedded.Open(dir, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := to.Replay(context.Background(), func(journal.Record) error { return errors.New("the journal is not new") }); err != nil {
		return err
	}
	last := max(state.Ceiling, 1)
	if err := to.Trim(last, nil); err != nil {
		return err
	}
	var wait func() error
	var notes []embedded.Note
	for _, r := range records {
		revision := uint64(0)
		if !r.Deleted {
			last++
			revision = last
			wait, err = to.Append(journal.Record{Revision: last, Key: r.Key, Value: r.Value, Committed: r.Committed, Expires: r.Expires})
			if err != nil {
				return err
			}
		}
		if _, placed := j.layout.place(r.Key); placed {
			if k := r.known(revision, r.Revision <= state.Finished); k.file != (digest{}) || k.next != (digest{}) {
				notes = append(notes, embedded.Note{Name: knownNotes + r.Key, Value: k.encode()})
			}
		}
	}
	if wait != nil {
		if err := wait(); err != nil {
			return err
		}
	}
	if err := to.Trim(last, nil); err != nil {
		return err
	}
	return to.SetNotes(notes)
}

// known returns the state of the object file according to a record. Unless the record is finished, the file may still
// be the replaced one.
func (r recordV1) known(revision uint64, finished bool) fileState {
	switch {
	case r.Deleted || r.file.Suffix == binarySuffix:
		return fileState{file: r.file.Replaces}
	case finished:
		return fileState{revision: revision, file: r.file.SHA256, says: r.file.Says}
	}
	return fileState{revision: revision, file: r.file.Replaces, next: r.file.SHA256}
}

func (j *Journal) stateV1() (s stateV1, err error) {
	data, err := j.read(statePath, 1<<16)
	if err != nil {
		return s, err
	}
	_, body, err := unseal(stateMagic, data)
	if err == nil {
		err = strict(body, &s)
	}
	if err != nil {
		return s, journal.Damaged(0, "%s: %w", j.path(statePath), err)
	}
	return s, nil
}

// recordsV1 reads all records of the first format, in the order of their revisions.
func (j *Journal) recordsV1() ([]recordV1, error) {
	names, err := j.namesV1(recordsV1, nil)
	if err != nil {
		return nil, err
	}
	records := make([]recordV1, len(names))
	err = parallel(len(names), func(i int) error {
		data, err := j.read(names[i], 1<<31)
		if err == nil {
			records[i], err = decodeV1(data)
		}
		if err != nil {
			return journal.Damaged(0, "%s: %w", j.path(names[i]), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(records, func(a, b recordV1) int { return cmp.Compare(a.Revision, b.Revision) })
	return records, nil
}

// namesV1 lists the files of records below a directory, which may be missing.
func (j *Journal) namesV1(dir string, found []string) ([]string, error) {
	list, err := j.files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for _, item := range list {
		name := path.Join(dir, item.Name())
		switch {
		case item.IsDir():
			if found, err = j.namesV1(name, found); err != nil {
				return nil, err
			}
		case strings.HasSuffix(name, recordSuffix):
			found = append(found, name)
		}
	}
	return found, nil
}

func decodeV1(data []byte) (recordV1, error) {
	_, body, err := unseal(recordMagic, data)
	if err != nil {
		return recordV1{}, err
	}
	head, value, found := bytes.Cut(body, []byte("\n"))
	if !found {
		return recordV1{}, errors.New("the header does not end")
	}
	var h struct {
		Key       string    `json:"key"`
		Revision  uint64    `json:"revision"`
		Previous  uint64    `json:"previous"`
		Deleted   bool      `json:"deleted"`
		Committed time.Time `json:"committed"`
		Expires   time.Time `json:"expires"`
		File      fileV1    `json:"file"`
	}
	if err := strict(head, &h); err != nil {
		return recordV1{}, fmt.Errorf("header: %w", err)
	}
	r := recordV1{file: h.File, Record: journal.Record{
		Revision: h.Revision, Deleted: h.Deleted, Key: h.Key, Committed: h.Committed.UTC(), Expires: h.Expires,
	}}
	if !r.Deleted {
		r.Value = value
	}
	return r, nil
}

func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// restoreV1 moves edits back that were out of their places when a process died. clean removes all other temporary
// files.
func (j *Journal) restoreV1(records []recordV1) error {
	list, err := j.files.List(tempDir)
	if err != nil {
		return err
	}
	for _, item := range list {
		var revision uint64
		if _, err := fmt.Sscanf(item.Name(), "%d"+displacedV1+yamlSuffix, &revision); err != nil {
			continue
		}
		at := slices.IndexFunc(records, func(r recordV1) bool { return r.Revision == revision })
		if at < 0 {
			continue
		}
		r := records[at]
		place, placed := j.layout.place(r.Key)
		if !placed {
			continue
		}
		if err := j.restore(
			path.Join(tempDir, item.Name()),
			place.stem+yamlSuffix,
			fileState{file: r.file.SHA256, next: r.file.Replaces},
		); err != nil {
			return err
		}
	}
	return nil
}

// removeFormat1 removes the files of the first format once the journal exists: the records, and the object files that
// people could not read.
func (j *Journal) removeFormat1() error {
	names, err := j.namesV1(recordsV1, nil)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := j.read(name, 1<<31)
		if err != nil {
			return err
		}
		if r, err := decodeV1(data); err == nil && r.file.Suffix == binarySuffix {
			if place, placed := j.layout.place(r.Key); placed {
				binary := place.stem + binarySuffix
				if hash, err := j.hash(binary); err == nil && (hash == r.file.SHA256 || hash == r.file.Replaces) {
					if err := j.files.Remove(binary); err != nil {
						return err
					}
				}
			}
		}
		if err := j.files.Remove(name); err != nil {
			return err
		}
	}
	return j.removeAll(recordsV1)
}

// removeAll removes a directory with its content, if it exists.
func (j *Journal) removeAll(dir string) error {
	list, err := j.files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, item := range list {
		name := path.Join(dir, item.Name())
		remove := j.files.Remove
		if item.IsDir() {
			remove = j.removeAll
		}
		if err := remove(name); err != nil {
			return err
		}
	}
	return j.files.Remove(dir)
}
