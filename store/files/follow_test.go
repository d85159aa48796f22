package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// followed is a journal whose files are written from Replay until it is closed.
type followed struct {
	*files.Journal
	decide driver.Decide
	cancel context.CancelFunc
	done   chan error
}

// follow returns j with files that follow. An edit is an error of the test.
func follow(t testing.TB, j *files.Journal) *followed {
	return &followed{Journal: j, decide: func(_ context.Context, p *driver.Edit) ([]byte, error) {
		err := fmt.Errorf("an edit that no person made: %s %s", p.Path, p.Document)
		fmt.Fprintln(os.Stderr, err) // the test may run in a process that is to be killed
		t.Error(err)
		return nil, err
	}}
}

func (f *followed) Replay(ctx context.Context, yield func(journal.Record) error) (uint64, error) {
	compacted, err := f.Journal.Replay(ctx, yield)
	if err == nil && f.cancel == nil {
		running, cancel := context.WithCancel(context.Background())
		f.cancel, f.done = cancel, make(chan error, 1)
		go func() { f.done <- f.Run(running, f.decide) }()
	}
	return compacted, err
}

// Recover implements journal.Recoverer.
func (f *followed) Recover() (journal.Journal, error) {
	if _, err := f.Journal.Recover(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *followed) Close() error {
	if f.cancel != nil {
		f.cancel()
		if err := <-f.done; err != nil {
			return err
		}
		f.cancel = nil
	}
	return f.Journal.Close()
}

// server is the part of a server that the tree needs: it writes objects to the journal, and carries edits out.
type server struct {
	*followed
	t testing.TB

	mu      sync.Mutex
	last    uint64
	current map[string]journal.Record
	edits   int
}

func serve(t testing.TB, root string, options files.Options) *server {
	t.Helper()
	options.Resources = layout
	j, err := files.Open(root, options)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{followed: &followed{Journal: j}, t: t, last: 1, current: map[string]journal.Record{}}
	s.followed.decide = s.decide
	t.Cleanup(func() { _ = s.Close() })
	compacted, err := s.Replay(t.Context(), func(r journal.Record) error {
		r.Value = bytes.Clone(r.Value) // the value belongs to the journal
		s.last, s.current[r.Key] = r.Revision, r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.last = max(s.last, compacted)
	s.mu.Unlock()
	select {
	case <-s.Observed():
	case <-time.After(time.Minute):
		t.Fatal("the files have not been looked at after a minute")
	}
	return s
}

// put writes an object; nil deletes it.
func (s *server) put(key string, value []byte) {
	s.t.Helper()
	if err := s.tryPut(key, value); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) tryPut(key string, value []byte) error {
	s.mu.Lock()
	r := journal.Record{Revision: s.last + 1, Key: key, Value: value, Deleted: value == nil, Committed: time.Now().UTC()}
	if before := s.current[key]; !before.Deleted {
		r.Previous = before.Revision
	}
	wait, err := s.Append(r)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.last, s.current[key] = r.Revision, r
	s.mu.Unlock()
	return wait()
}

func (s *server) decide(_ context.Context, p *driver.Edit) ([]byte, error) {
	s.mu.Lock()
	s.edits++
	before := s.current[p.Key]
	s.mu.Unlock()
	exists := before.Revision != 0 && !before.Deleted
	if p.Deleted() {
		if !exists {
			return nil, nil
		}
		return nil, s.tryPut(p.Key, nil)
	}
	document := p.Document
	if exists {
		document = p.Onto(before.Value)
	}
	if exists && bytes.Equal(before.Value, document) {
		return p.Document, nil
	}
	return p.Document, s.tryPut(p.Key, document)
}

func (s *server) value(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.current[key].Value)
}

// stop ends the server as a signal does.
func (s *server) stop() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
}

func pod(namespace, name, spec string) []byte {
	return fmt.Appendf(
		nil,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u"},"spec":%s,"status":{}}`,
		name,
		namespace,
		spec,
	)
}

func podKey(namespace, name string) string { return "/pods/" + namespace + "/" + name }

func podFile(root, namespace, name string) string {
	return filepath.Join(root, "core", "pods", namespace, name+".yaml")
}

func contentOf(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// awaitFile waits until a file contains a text.
func awaitFile(t testing.TB, path, part string) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("%s contains %q", path, part), func() bool { return strings.Contains(contentOf(t, path), part) })
}

func awaitGone(t testing.TB, path string) {
	t.Helper()
	testwait.Until(t, path+" is gone", func() bool { _, err := os.Lstat(path); return os.IsNotExist(err) })
}

// specOf returns the spec of a stored object.
func specOf(t testing.TB, value string) map[string]any {
	t.Helper()
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal([]byte(value), &object); err != nil {
		t.Fatalf("%v in %q", err, value)
	}
	return object.Spec
}
