package memory

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// Store is a driver like Storage, whose objects stay in memory as long as the Store does: a server that opens it again has the
// objects, and the revisions, of the server before. One server may have it open at a time. The zero value is an empty Store.
// Its methods may be called concurrently. A Store must not be copied.
type Store struct {
	storage
	mu sync.Mutex
	// kept is the journal that was opened last; nil before the first one.
	kept *memory
}

var _ driver.Journal = (*Store)(nil)

// OpenJournal implements driver.Journal. A new Store begins at the current time in microseconds, as Storage does. The error
// matches journal.ErrLocked while a server has the Store open.
func (s *Store) OpenJournal(context.Context, driver.Env) (journal.Journal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.kept == nil:
		s.kept = newMemory(uint64(time.Now().UnixMicro()))
	case s.kept.Err() == nil:
		return nil, fmt.Errorf("open the memory: %w", journal.ErrLocked)
	default:
		s.kept = s.kept.fork()
	}
	s.kept.kept = true
	return s.kept, nil
}

// Fork returns a Store with the objects, revisions and history that this one has at the moment of the call, whether a server
// has it open or not. It takes microseconds, whatever the size: both share all values in memory, and neither sees writes to
// the other.
func (s *Store) Fork() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		return &Store{}
	}
	fork := s.kept.fork()
	fork.closed = true
	return &Store{kept: fork}
}

// Revision returns the revision of the last write. Stores with the same history and revision have the same objects. It is 0
// until a server opens the Store, which then begins at the time in microseconds.
func (s *Store) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		return 0
	}
	return s.kept.revision()
}

// snapshotVersion is the version of the format of WriteTo.
const snapshotVersion = 1

type snapshotHeader struct {
	Version  int    `json:"annexSnapshot"`
	Revision uint64 `json:"revision"`
	Objects  int    `json:"objects"`
}

// snapshotObject is an object as it is stored. Value is set if the stored bytes are compact JSON and a newline, which it
// leaves out; Data has any other bytes.
type snapshotObject struct {
	Key      string          `json:"key"`
	Revision uint64          `json:"revision"`
	Expires  *time.Time      `json:"expires,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Data     []byte          `json:"data,omitempty"`
}

// WriteTo writes the objects that the Store has at the moment of the call, and their revisions, without history: a line of
// JSON for each object, sorted by key. A Store of the same state writes the same bytes. Objects are written as they are
// stored, so Secrets can be read unless the server encrypts them. docs/formats/snapshot.md describes the format.
func (s *Store) WriteTo(w io.Writer) (int64, error) {
	objects, revision := s.Fork().latest()
	counted := &countingWriter{to: w}
	buffered := bufio.NewWriter(counted)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(snapshotHeader{snapshotVersion, revision, len(objects)})
	for _, r := range objects {
		if err == nil {
			err = encoder.Encode(snapshotOf(r))
		}
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return counted.n, fmt.Errorf("write the snapshot: %w", err)
	}
	return counted.n, nil
}

// WriteFile writes what WriteTo writes to a file, which it replaces as a whole. It replaces nothing but files.
func (s *Store) WriteFile(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("write the snapshot: %s is not a file, but %s", path, info.Mode())
	}
	file, err := atomicfile.Create(path, 0o644)
	if err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	defer file.Discard()
	if _, err := s.WriteTo(file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := file.Replace(); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return nil
}

func snapshotOf(r *journal.Record) snapshotObject {
	o := snapshotObject{Key: r.Key, Revision: r.Revision}
	if !r.Expires.IsZero() {
		o.Expires = &r.Expires
	}
	// A value must come back byte for byte, and the encoder makes JSON compact.
	text, ends := bytes.CutSuffix(r.Value, []byte("\n"))
	if compact := (&bytes.Buffer{}); ends && json.Compact(compact, text) == nil && bytes.Equal(compact.Bytes(), text) {
		o.Value = text
	} else {
		o.Data = r.Value
	}
	return o
}

// latest returns the records of all objects by key, and the newest revision.
func (s *Store) latest() ([]*journal.Record, uint64) {
	if s.kept == nil {
		return nil, 0
	}
	byKey := map[string]*journal.Record{}
	s.kept.records.Scan(func(r *journal.Record) bool {
		if r.Deleted {
			delete(byKey, r.Key)
		} else {
			byKey[r.Key] = r
		}
		return true
	})
	objects := make([]*journal.Record, 0, len(byKey))
	for _, r := range byKey {
		objects = append(objects, r)
	}
	slices.SortFunc(objects, func(a, b *journal.Record) int { return cmp.Compare(a.Key, b.Key) })
	return objects, s.kept.last
}

// Read returns a Store with the objects that WriteTo has written. A client that returns with an earlier revision than that of
// the snapshot gets an expired error. The error names the line of the first mistake.
func Read(from io.Reader) (*Store, error) {
	s, err := read(bufio.NewReader(from))
	if err != nil {
		return nil, fmt.Errorf("read the snapshot: %w", err)
	}
	return s, nil
}

// ReadFile returns a Store with the objects that WriteFile has written, as Read does.
func ReadFile(path string) (*Store, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the snapshot: %w", err)
	}
	defer file.Close()
	s, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func read(from *bufio.Reader) (*Store, error) {
	line := 0
	next := func(into any) error {
		line++
		text, err := from.ReadBytes('\n')
		if err != nil && (!errors.Is(err, io.EOF) || len(text) == 0) {
			return err
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		return nil
	}
	var header snapshotHeader
	if err := next(&header); err != nil {
		return nil, fmt.Errorf("the header: %w", cut(err))
	}
	if header.Version != snapshotVersion {
		return nil, fmt.Errorf("the header: the format has version %d, and this program reads version %d", header.Version, snapshotVersion)
	}
	// Resource versions are signed in many clients, and writes need revisions above that of the snapshot.
	if header.Revision > math.MaxInt64/2 || header.Objects < 0 {
		return nil, fmt.Errorf("the header: revision %d or %d objects are out of range", header.Revision, header.Objects)
	}
	kept := newMemory(header.Revision)
	kept.closed = true
	keys := map[string]bool{}
	for range header.Objects {
		var o snapshotObject
		if err := next(&o); err != nil {
			return nil, cut(err)
		}
		r := &journal.Record{Revision: o.Revision, Key: o.Key, Value: o.Data, Committed: time.Unix(0, 0).UTC()}
		if o.Value != nil {
			r.Value = append(o.Value, '\n')
		}
		if o.Expires != nil {
			r.Expires = *o.Expires
		}
		switch _, taken := kept.records.Get(r); {
		case o.Key == "" || o.Value == nil && o.Data == nil || o.Value != nil && o.Data != nil:
			return nil, fmt.Errorf("line %d: an object has a key, and either a value or data", line)
		case o.Revision == 0 || o.Revision > header.Revision:
			return nil, fmt.Errorf("line %d: revision %d is not in 1 to %d, that of the snapshot", line, o.Revision, header.Revision)
		case taken || keys[o.Key]:
			return nil, fmt.Errorf("line %d: another object has the key %q or the revision %d", line, o.Key, o.Revision)
		}
		keys[o.Key] = true
		kept.records.Set(r)
	}
	if _, err := from.ReadByte(); err == nil {
		return nil, fmt.Errorf("line %d: more objects than the %d of the header", line+1, header.Objects)
	}
	return &Store{kept: kept}, nil
}

// cut replaces the error of a file that ends too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the file ends too early")
	}
	return err
}

type countingWriter struct {
	to io.Writer
	n  int64
}

// Write implements io.Writer.
func (c *countingWriter) Write(data []byte) (int, error) {
	n, err := c.to.Write(data)
	c.n += int64(n)
	return n, err
}
