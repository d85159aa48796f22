package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

const editedPath = "core/pods/a/x.yaml"

// meddled is a file system on which a person does something at the last moment before
// the object file is given its content, or taken away. From then on it may be dead.
type meddled struct {
	files.FS
	meddle func() // once, if not nil
	armed  *atomic.Bool
	// dies says after how many more changes everything fails; less than 0 is never.
	dies int64
	left *atomic.Int64
	dead *atomic.Bool
	// why it fails then.
	why error
	// alone says that files can be renamed only as everywhere.
	alone bool
}

func meddle(under files.FS, dies int64, meddle func()) meddled {
	return meddled{under, meddle, new(atomic.Bool), dies, new(atomic.Int64), new(atomic.Bool), syscall.EIO, false}
}

// arm has it happen at the next change of the object file.
func (m meddled) arm() { m.armed.Store(true) }

func (m meddled) change(do func() error, names ...string) error {
	for _, name := range names {
		if name == editedPath && m.armed.CompareAndSwap(true, false) {
			m.meddle()
			if m.dies >= 0 {
				m.left.Store(m.dies)
				m.dead.Store(true)
			}
		}
	}
	if m.dead.Load() && m.left.Add(-1) < 0 {
		return m.why
	}
	return do()
}

func (m meddled) Rename(oldName, newName string) error {
	return m.change(func() error { return m.FS.Rename(oldName, newName) }, oldName, newName)
}

func (m meddled) RenameNew(oldName, newName string) error {
	if m.alone {
		return errors.ErrUnsupported
	}
	return m.change(func() error { return m.FS.RenameNew(oldName, newName) }, newName)
}

func (m meddled) Exchange(oldName, newName string) error {
	if m.alone {
		return errors.ErrUnsupported
	}
	return m.change(func() error { return m.FS.Exchange(oldName, newName) }, newName)
}

func (m meddled) Remove(name string) error {
	return m.change(func() error { return m.FS.Remove(name) }, name)
}

func (m meddled) Create(name string) (files.File, error) {
	if m.dead.Load() {
		return nil, m.why
	}
	return m.FS.Create(name)
}

func writeFile(t *testing.T, under files.FS, name, content string) {
	t.Helper()
	file, err := under.Create(name)
	if err == nil {
		_, err = file.Write([]byte(content))
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// readFile returns nothing if there is no file.
func readFile(t *testing.T, under files.FS, name string) string {
	t.Helper()
	file, err := under.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

const byHand = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n  namespace: a\nspec:\n  content: by hand\n"

// edits are what a person can do to a file, and what is there then.
func edits(t *testing.T, under files.FS) map[string]struct {
	do    func()
	after string
} {
	return map[string]struct {
		do    func()
		after string
	}{
		"written": {func() { writeFile(t, under, editedPath, byHand) }, byHand},
		"replaced": {func() {
			writeFile(t, under, "core/pods/a/.x.swp", byHand)
			if err := under.Rename("core/pods/a/.x.swp", editedPath); err != nil {
				t.Error(err)
			}
		}, byHand},
		"removed": {func() {
			if err := under.Remove(editedPath); err != nil {
				t.Error(err)
			}
		}, ""},
	}
}

// next appends a record of the object, and waits for it.
func (l *load) next(content string) error {
	record := journal.Record{Revision: l.last + 1, Previous: l.current["/pods/a/x"], Key: "/pods/a/x", Committed: time.Now().UTC()}
	if record.Deleted = content == ""; !record.Deleted {
		record.Value = valueOf(content)
	}
	return l.append(context.Background(), record)
}

func (l *load) append(ctx context.Context, record journal.Record) error {
	if err := l.journal.Permit(ctx, record); err != nil {
		return err
	}
	wait, err := l.journal.Append(record)
	if err != nil {
		return err
	}
	l.last, l.current[record.Key] = record.Revision, record.Revision
	if record.Deleted {
		l.current[record.Key] = 0
	}
	return wait()
}

// TestAnEditAtTheLastMomentIsNotLost has a person change the object file when the
// server has looked at it for the last time, and is about to change it. The write is
// durable, and the edit comes after it. If the server dies meanwhile, at any moment,
// it is the same after that.
func TestAnEditAtTheLastMomentIsNotLost(t *testing.T) {
	testLastMoment(t, syscall.EIO, func(t *testing.T, l *load, under meddled) *files.Journal {
		_ = l.journal.Close()
		next, err := files.Open("root", files.Options{Resources: layout, FS: under.FS})
		if err != nil {
			t.Fatal(err)
		}
		return next
	})
}

// TestAnEditAtTheLastMomentOutlivesAFullDisk is the same with a disk that is full from
// some moment on, and a journal that recovers when it no longer is.
func TestAnEditAtTheLastMomentOutlivesAFullDisk(t *testing.T) {
	testLastMoment(t, syscall.ENOSPC, func(t *testing.T, l *load, under meddled) *files.Journal {
		j := l.journal
		for j.Err() == nil {
			_ = l.append(t.Context(), journal.Record{Revision: l.last + 1, Previous: l.current["/pods/a/y"], Key: "/pods/a/y", Value: valueOf("y"), Committed: time.Now().UTC()})
		}
		if _, err := j.Recover(); !errors.Is(err, journal.ErrTransient) {
			t.Errorf("recovered on a full disk: %v", err)
		}
		under.dead.Store(false)
		next, err := j.Recover()
		if err != nil {
			t.Fatal(err)
		}
		return next.(*files.Journal)
	})
}

// testLastMoment lets changes fail, and takes what goes on after that from again.
func testLastMoment(t *testing.T, why error, again func(t *testing.T, l *load, under meddled) *files.Journal) {
	t.Helper()
	for _, write := range []string{"create", "update", "delete"} {
		for name := range edits(t, nil) {
			if write == "create" && name == "removed" {
				continue // there is nothing
			}
			for dies := int64(-1); dies < 8; dies++ {
				t.Run(fmt.Sprintf("%s/%s/dies=%d", write, name, dies), func(t *testing.T) {
					t.Parallel()
					healthy := newMemory(vfs.NewMem())
					edit := edits(t, healthy)[name]
					under := meddle(healthy, dies, edit.do)
					under.why = why
					j, err := files.Open("root", files.Options{Resources: layout, FS: under})
					if err != nil {
						t.Fatal(err)
					}
					l := newLoad()
					l.take(t, j)
					// The directory is there in any case.
					if err := l.append(t.Context(), journal.Record{Revision: l.last + 1, Key: "/pods/a/y", Value: valueOf("y"), Committed: time.Now().UTC()}); err != nil {
						t.Fatal(err)
					}
					want := "second"
					switch write {
					case "update":
						err = l.next("first")
					case "delete":
						err = l.next("first")
						want = ""
					}
					if err != nil {
						t.Fatal(err)
					}
					under.arm()
					before := l.current["/pods/a/x"]
					err = l.next(want)
					if under.armed.Load() {
						t.Fatal("nothing was done to the file at the last moment")
					}
					if dies < 0 && err != nil {
						t.Fatal(err)
					}
					if err == nil && !under.dead.Load() {
						if got := readFile(t, healthy, editedPath); got != edit.after {
							t.Fatalf("the file is\n%s", got)
						}
						l.proposes(t, write, edit.after)
						closeChecked(t, j)
						return
					}
					// What goes on finds both.
					j = again(t, l, under)
					l.current = map[string]uint64{}
					l.take(t, j)
					switch now := l.current["/pods/a/x"]; {
					case write == "delete" && now != 0, write != "delete" && now <= before:
						t.Errorf("the write is lost: revision %d is there, %d was before", now, before)
					}
					// A removal right before a crash is the one edit that may be misunderstood.
					if got := readFile(t, healthy, editedPath); name != "removed" && got != edit.after {
						t.Fatalf("after a crash the file is\n%s", got)
					}
					if name != "removed" {
						l.proposes(t, write, edit.after)
					}
					if left, err := healthy.List(".annex/tmp"); err != nil || len(left) > 0 {
						t.Errorf("left behind: %v, %v", left, err)
					}
					closeChecked(t, j)
				})
			}
		}
	}
}

// proposes checks that the edit is proposed, and accepts it.
func (l *load) proposes(t *testing.T, write, file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var proposals atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- l.journal.Run(ctx, func(ctx context.Context, p *files.Proposal) error {
			if p.Key != "/pods/a/x" || p.Deleted() != (file == "") || !p.Deleted() && !strings.Contains(string(p.Document), "by hand") {
				t.Errorf("proposed: %s of %s", p.Document, p.Path)
			}
			proposals.Add(1)
			record := journal.Record{Revision: l.last + 1, Previous: l.current[p.Key], Key: p.Key, Committed: time.Now().UTC(), Value: p.Document, Deleted: p.Deleted()}
			err := l.append(p.Accept(ctx, p.Document), record)
			cancel()
			return err
		})
	}()
	if write == "delete" && file == "" {
		<-l.journal.Observed() // both wanted the same
		cancel()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	want := int64(1)
	if write == "delete" && file == "" {
		want = 0
	}
	if got := proposals.Load(); got != want {
		t.Errorf("%d edits were proposed, want %d", got, want)
	}
}

// TestFilesAreReplacedWhereTheyCannotBeSwapped is about systems that can only rename.
func TestFilesAreReplacedWhereTheyCannotBeSwapped(t *testing.T) {
	under := meddle(newMemory(vfs.NewMem()), -1, nil)
	under.alone = true
	j, err := files.Open("root", files.Options{Resources: layout, FS: under})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad()
	l.take(t, j)
	for _, content := range []string{"first", "second", "", "third", ""} {
		if err := l.next(content); err != nil {
			t.Fatal(err)
		}
		if got := readFile(t, under, editedPath); content == "" && got != "" || !strings.Contains(got, content) {
			t.Errorf("instead of %q the file is\n%s", content, got)
		}
	}
	closeChecked(t, j)
}

// TestAnEditIsNotStarvedByWrites has writers that are never done with an object: what
// a person makes of its file still becomes the object.
func TestAnEditIsNotStarvedByWrites(t *testing.T) {
	dir := t.TempDir()
	j, err := files.Open(dir, files.Options{Resources: layout})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad()
	l.take(t, j)
	if err := l.next("0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	decided := make(chan struct{})
	// append does not wait, so that there always is a write under way.
	appendNow := func(ctx context.Context, value []byte, proposed bool) (func() error, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if isClosed(decided) {
			return nil, errors.New("the edit has been carried out")
		}
		record := journal.Record{Revision: l.last + 1, Previous: l.current["/pods/a/x"], Key: "/pods/a/x", Committed: time.Now().UTC(), Value: value}
		if err := j.Permit(ctx, record); err != nil {
			return nil, err
		}
		wait, err := j.Append(record)
		if err == nil {
			l.last, l.current[record.Key] = record.Revision, record.Revision
			if proposed {
				close(decided)
			}
		}
		return wait, err
	}
	done := make(chan error, 1)
	go func() {
		done <- j.Run(ctx, func(ctx context.Context, p *files.Proposal) error {
			wait, err := appendNow(p.Accept(ctx, p.Document), p.Document, true)
			if err != nil {
				return err
			}
			return wait()
		})
	}()
	waits := make(chan func() error, 64)
	go func() {
		defer close(waits)
		for n := 0; ctx.Err() == nil && !isClosed(decided); n++ {
			// Only the status changes: the file needs no look for its own sake.
			value := strings.Replace(string(valueOf("0")), `"phase":"0"`, fmt.Sprintf(`"phase":"%d"`, n), 1)
			if wait, err := appendNow(ctx, []byte(value), false); err == nil {
				waits <- wait
			}
		}
	}()
	n := 0
	for wait := range waits {
		if err := wait(); err != nil {
			t.Error(err)
		}
		if n++; n == 10 {
			if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(editedPath)), []byte(byHand), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	if !isClosed(decided) {
		t.Error("the edit was not carried out")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	closeChecked(t, j)
	content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(editedPath)))
	if err != nil || string(content) != byHand {
		t.Errorf("the file is\n%s (%v)", content, err)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
