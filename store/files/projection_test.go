package files_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

func TestFiles_followRecords(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	s.put(podKey("a", "x"), pod("a", "x", `{"size":"small"}`))
	awaitFile(t, podFile(root, "a", "x"), "size: small\n")
	s.put(podKey("a", "x"), pod("a", "x", `{"size":"large"}`))
	awaitFile(t, podFile(root, "a", "x"), "size: large\n")
	s.put("/elsewhere/y", []byte(`{"kind":"Thing"}`))
	awaitFile(t, filepath.Join(root, "core", "elsewhere", "_cluster", "y.yaml"), "kind: Thing\n")
	s.put(podKey("a", "x"), nil)
	awaitGone(t, podFile(root, "a", "x"))
	s.put(podKey("a", "x"), pod("a", "x", `{"size":"again"}`))
	awaitFile(t, podFile(root, "a", "x"), "size: again\n")
	// An object that is not JSON is not for people, and its previous file is removed.
	s.put(podKey("a", "x"), []byte("k8s:enc:aescbc:v1:key1:secret"))
	awaitGone(t, podFile(root, "a", "x"))
	if s.edits != 0 {
		t.Errorf("%d edits", s.edits)
	}
}

// sayTheSame returns an error unless the files are exactly those of the objects.
func sayTheSame(t testing.TB, root string, objects map[string]string) error {
	t.Helper()
	left := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "core"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			left[path] = true
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for key, value := range objects {
		parts := strings.Split(key, "/")
		path := podFile(root, parts[2], parts[3])
		delete(left, path)
		var file, want map[string]any
		if err := yaml.Unmarshal([]byte(contentOf(t, path)), &file); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := json.Unmarshal([]byte(value), &want); err != nil {
			return err
		}
		if !reflect.DeepEqual(file["spec"], want["spec"]) {
			return fmt.Errorf("%s says %v, want %v", path, file["spec"], want["spec"])
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("files of no object: %v", left)
	}
	return nil
}

// objects returns the objects that a server has.
func (s *server) objects() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for key, r := range s.current {
		if !r.Deleted {
			all[key] = string(r.Value)
		}
	}
	return all
}

func (s *server) awaitSame(root string) {
	s.t.Helper()
	var last error
	defer func() {
		if s.t.Failed() {
			s.t.Log(last)
		}
	}()
	testwait.Until(s.t, "the files say the same as the store", func() bool {
		last = sayTheSame(s.t, root, s.objects())
		return last == nil
	})
}

// TestFiles_afterDeathBeforeProjection_equalRecords writes records without writing files, as a process does that dies
// between the two.
func TestFiles_afterDeathBeforeProjection_equalRecords(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	for _, name := range []string{"changed", "deleted", "kept"} {
		s.put(podKey("a", name), pod("a", name, `{"v":1}`))
	}
	s.awaitSame(root)
	s.stop()

	j, err := files.Open(root, files.Options{Resources: layout})
	if err != nil {
		t.Fatal(err)
	}
	dying := &server{followed: &followed{Journal: j}, t: t, current: map[string]journal.Record{}}
	if _, err := j.Replay(t.Context(), func(r journal.Record) error {
		r.Value = bytes.Clone(r.Value) // the value belongs to the journal
		dying.last, dying.current[r.Key] = r.Revision, r
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	dying.put(podKey("a", "changed"), pod("a", "changed", `{"v":2}`))
	dying.put(podKey("a", "deleted"), nil)
	dying.put(podKey("b", "added"), pod("b", "added", `{"v":1}`))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	s = serve(t, root, files.Options{})
	s.awaitSame(root)
	if s.edits != 0 || len(s.objects()) != 3 {
		t.Errorf("%d edits, objects %v", s.edits, s.objects())
	}
}

const victimEnv = "ANNEX_TEST_FILES_VICTIM"

// TestFilesEqualTheStoreAfterKills kills a process that writes objects, and so files, ANNEX_CRASH_KILLS times. The
// next process must not take any file for an edit.
func TestFilesEqualTheStoreAfterKills(t *testing.T) {
	if root := os.Getenv(victimEnv); root != "" {
		s := serve(t, root, files.Options{})
		rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
		for n := 0; ; n++ {
			key, value := randomChange(rng, fmt.Sprintf("%d-%d", os.Getpid(), n))
			if s.put(key, value); s.t.Failed() {
				os.Exit(3)
			}
			fmt.Println("ack")
		}
	}
	root := t.TempDir()
	rng := storetest.Seeded(t)
	kills := storetest.Trials(t, "ANNEX_CRASH_KILLS", 8)
	for range kills {
		child := exec.Command(os.Args[0], "-test.run=^TestFilesEqualTheStoreAfterKills$")
		child.Env = append(os.Environ(), victimEnv+"="+root)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for after := 1 + rng.IntN(200); after > 0 && lines.Scan(); after-- {
			if lines.Text() != "ack" {
				t.Errorf("the victim said %s", lines.Text())
			}
		}
		_ = child.Process.Kill()
		if err := child.Wait(); child.ProcessState.Exited() {
			t.Fatalf("the victim ended of itself: %v", err)
		}
		s := serve(t, root, files.Options{})
		s.awaitSame(root)
		if s.edits != 0 || len(s.Problems()) != 0 {
			t.Fatalf("%d edits, problems %v", s.edits, s.Problems())
		}
		s.stop()
	}
	fmt.Printf("crash (files projected): %d kills, 0 edits that no person made, 0 files that differ\n", kills)
}

func randomChange(rng *rand.Rand, content string) (key string, value []byte) {
	namespace, name := fmt.Sprintf("ns%d", rng.IntN(3)), fmt.Sprintf("pod-%d", rng.IntN(20))
	if rng.IntN(4) > 0 {
		value = pod(namespace, name, fmt.Sprintf(`{"content":%q,"padding":%q}`, content, strings.Repeat("x", rng.IntN(2000))))
	}
	return podKey(namespace, name), value
}

func TestEdits_whileNotServed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	for _, name := range []string{"edited", "removed", "renamed", "kept"} {
		s.put(podKey("a", name), pod("a", name, `{"size":"small"}`))
	}
	s.awaitSame(root)
	s.stop()
	edit := func(name, before, after string) {
		t.Helper()
		path := podFile(root, "a", name)
		writeFile(t, path, strings.Replace(contentOf(t, path), before, after, 1))
	}
	edit("edited", "small", "large # for now")
	if err := os.Remove(podFile(root, "a", "removed")); err != nil {
		t.Fatal(err)
	}
	edit("renamed", "name: renamed", "name: new")
	if err := os.Rename(podFile(root, "a", "renamed"), podFile(root, "a", "new")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, podFile(root, "b", "added"), "{apiVersion: v1, kind: Pod, metadata: {name: added}, spec: {size: tiny}}")

	s = serve(t, root, files.Options{})
	want := map[string]string{"/pods/a/edited": "large", "/pods/a/new": "small", "/pods/a/kept": "small", "/pods/b/added": "tiny"}
	objects := s.objects()
	for key, size := range want {
		if objects[key] == "" || specOf(t, objects[key])["size"] != size {
			t.Errorf("%s is %s", key, objects[key])
		}
	}
	if len(objects) != len(want) {
		t.Errorf("got %v", objects)
	}
	if got := contentOf(t, podFile(root, "a", "edited")); !strings.Contains(got, "large # for now") {
		t.Errorf("the comment is lost:\n%s", got)
	}
}

func TestEdits_thousandAtOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("edits a thousand files")
	}
	const edits = 1000
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	for i := range edits {
		name := fmt.Sprintf("pod-%d", i)
		writeFile(t, podFile(root, "a", name), fmt.Sprintf("# mine\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {v: 1}\n", name))
	}
	testwait.Until(t, "all files are served", func() bool { return len(s.objects()) == edits })
	var group sync.WaitGroup
	group.Go(func() {
		for i := range edits {
			name := fmt.Sprintf("pod-%d", i)
			writeFile(t, podFile(root, "a", name), fmt.Sprintf("# mine\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {v: 2}\n", name))
		}
	})
	// Meanwhile a client changes another field of each of them.
	for i := range edits {
		key := podKey("a", fmt.Sprintf("pod-%d", i))
		s.mu.Lock()
		value := strings.Replace(string(s.current[key].Value), `"spec":{`, `"spec":{"w":1,`, 1)
		s.mu.Unlock()
		s.put(key, []byte(value))
	}
	group.Wait()
	testwait.Until(t, "all edits are served", func() bool {
		for _, value := range s.objects() {
			if spec := specOf(t, value); spec["v"] != 2.0 {
				return false
			}
		}
		return true
	})
	s.awaitSame(root)
	for i := range edits {
		if got := contentOf(t, podFile(root, "a", fmt.Sprintf("pod-%d", i))); !strings.HasPrefix(got, "# mine\n") {
			t.Fatalf("the comment is lost:\n%s", got)
		}
	}
	if problems := s.Problems(); len(problems) != 0 {
		t.Errorf("problems: %v", problems)
	}
}

func TestEdits_waysOfSaving(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	path := podFile(root, "a", "x")
	s.put(podKey("a", "x"), pod("a", "x", `{"v":0}`))
	awaitFile(t, path, "v: 0")
	text := func(n int) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\nspec:\n  v: %d\n", n)
	}
	for n, save := range map[int]func(n int) error{
		1: func(n int) error { return os.WriteFile(path, []byte(text(n)), 0o600) },
		2: func(n int) error { // a new file over the old one
			return errors.Join(os.WriteFile(path+".tmp", []byte(text(n)), 0o600), os.Rename(path+".tmp", path))
		},
		3: func(n int) error { // the old one as a backup, and a new one
			return errors.Join(os.Rename(path, path+"~"), os.WriteFile(path, []byte(text(n)), 0o600))
		},
		4: func(n int) error { // in parts
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				return err
			}
			for _, part := range strings.SplitAfter(text(n), "\n") {
				if _, err := file.WriteString(part); err != nil {
					return err
				}
				time.Sleep(3 * time.Millisecond)
			}
			return file.Close()
		},
		5: func(n int) error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte(text(n)), 0o600)) },
	} {
		if err := save(n); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, fmt.Sprintf("save %d is served", n), func() bool {
			value := s.value(podKey("a", "x"))
			return value != "" && specOf(t, value)["v"] == float64(n)
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current[podKey("a", "x")].Previous == 0 {
		t.Error("it was deleted in between")
	}
}

func TestEdits_removedFile_deletesObject(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	for _, name := range []string{"x", "y"} {
		s.put(podKey("a", name), pod("a", name, `{"v":1}`))
	}
	s.awaitSame(root)
	if err := os.RemoveAll(filepath.Join(root, "core", "pods", "a")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the objects are deleted", func() bool { return len(s.objects()) == 0 })
	s.put(podKey("a", "x"), pod("a", "x", `{"v":2}`))
	s.awaitSame(root)
}

// unwritable fails to write below a directory of the tree.
type unwritable struct {
	files.FS
	err *atomic.Pointer[error]
}

func (u unwritable) Create(name string) (files.File, error) {
	if err := u.err.Load(); err != nil && strings.HasPrefix(name, ".annex/tmp/") {
		return nil, &fs.PathError{Op: "create", Path: name, Err: *err}
	}
	return u.FS.Create(name)
}

// TestRun_unwritableFiles_delayNoRecord checks that only the files are late.
func TestRun_unwritableFiles_delayNoRecord(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EACCES, syscall.EIO} {
		t.Run(cause.Error(), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			u := unwritable{FS: files.Disk(root), err: &atomic.Pointer[error]{}}
			s := serve(t, root, files.Options{FS: u})
			s.put(podKey("a", "x"), pod("a", "x", `{"v":1}`))
			awaitFile(t, podFile(root, "a", "x"), "v: 1")
			u.err.Store(&cause)
			for n := range 50 {
				s.put(podKey("a", "x"), pod("a", "x", fmt.Sprintf(`{"v":%d}`, n+2)))
				s.put(podKey("a", fmt.Sprintf("x-%d", n)), pod("a", fmt.Sprintf("x-%d", n), `{"v":1}`))
			}
			testwait.Until(t, "it is reported", func() bool { return len(s.Overdue()) == 51 })
			if late := s.Overdue()[0]; late.Path != podFile(root, "a", "x-0") || !strings.Contains(late.Reason, cause.Error()) {
				t.Errorf("reported as %v", late)
			}
			if err := s.Err(); err != nil {
				t.Errorf("the journal has failed: %v", err)
			}
			if got := contentOf(t, podFile(root, "a", "x")); !strings.Contains(got, "v: 1\n") {
				t.Errorf("the file is\n%s", got)
			}
			u.err.Store(nil)
			s.awaitSame(root)
			testwait.Until(t, "it is not reported any more", func() bool { return len(s.Overdue()) == 0 })
			if s.edits != 0 {
				t.Errorf("%d edits", s.edits)
			}
		})
	}
}

// moment is a file system on which a person acts at the last moment before a file gets its content, or is removed.
type moment struct {
	files.FS
	name  string
	meant *atomic.Pointer[func()]
}

func (m moment) come(names ...string) {
	for _, name := range names {
		if name == m.name {
			if act := m.meant.Swap(nil); act != nil {
				(*act)()
			}
		}
	}
}

func (m moment) Rename(oldName, newName string) error {
	m.come(oldName, newName)
	return m.FS.Rename(oldName, newName)
}

func (m moment) RenameNew(oldName, newName string) error {
	m.come(newName)
	return m.FS.RenameNew(oldName, newName)
}

func (m moment) Exchange(oldName, newName string) error {
	m.come(newName)
	return m.FS.Exchange(oldName, newName)
}

func TestEdits_duringReplacement_areKept(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("files are swapped on Linux only")
	}
	edit := func(path string) func() {
		return func() {
			temp := filepath.Join(filepath.Dir(path), ".edit")
			_ = os.WriteFile(temp, []byte("apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\nspec:\n  mine: true # at the last moment\n"), 0o600)
			_ = os.Rename(temp, path)
		}
	}
	for name, write := range map[string]func(s *server){
		"change": func(s *server) { s.put(podKey("a", "x"), pod("a", "x", `{"v":2}`)) },
		"delete": func(s *server) { s.put(podKey("a", "x"), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			m := moment{FS: files.Disk(root), name: "core/pods/a/x.yaml", meant: &atomic.Pointer[func()]{}}
			s := serve(t, root, files.Options{FS: m, Rescan: 100 * time.Millisecond})
			path := podFile(root, "a", "x")
			s.put(podKey("a", "x"), pod("a", "x", `{"v":1}`))
			awaitFile(t, path, "v: 1")
			act := edit(path)
			m.meant.Store(&act)
			write(s)
			testwait.Until(t, "the edit is served", func() bool {
				value := s.value(podKey("a", "x"))
				return value != "" && specOf(t, value)["mine"] == true
			})
			awaitFile(t, path, "mine: true # at the last moment")
			s.awaitSame(root)
		})
	}
	t.Run("create", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		m := moment{FS: files.Disk(root), name: "core/pods/a/x.yaml", meant: &atomic.Pointer[func()]{}}
		s := serve(t, root, files.Options{FS: m, Rescan: 100 * time.Millisecond})
		act := edit(podFile(root, "a", "x"))
		m.meant.Store(&act)
		s.put(podKey("a", "x"), pod("a", "x", `{"v":1}`))
		awaitFile(t, podFile(root, "a", "x"), "mine: true # at the last moment")
		testwait.Until(t, "the edit is served", func() bool { return specOf(t, s.value(podKey("a", "x")))["mine"] == true })
		s.awaitSame(root)
	})
}

func TestEdits_rejected_isReportedAndKept(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{})
	path := podFile(root, "a", "x")
	s.put(podKey("a", "x"), pod("a", "x", `{"v":1,"w":1}`))
	awaitFile(t, path, "v: 1")
	writeFile(t, path, "apiVersion: [")
	testwait.Until(t, "it is reported", func() bool { return len(s.Problems()) == 1 })
	for n := range 20 {
		s.put(podKey("a", "x"), pod("a", "x", fmt.Sprintf(`{"v":%d,"w":1}`, n+2)))
	}
	if got := contentOf(t, path); got != "apiVersion: [" {
		t.Errorf("the file is\n%s", got)
	}
	// Once the file is repaired, the client's changes stay where the person has not changed the same field.
	writeFile(t, path, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\nspec:\n  v: 1\n  w: 5\n")
	testwait.Until(t, "it is served", func() bool {
		spec := specOf(t, s.value(podKey("a", "x")))
		return spec["w"] == 5.0 && spec["v"] == 21.0
	})
	s.awaitSame(root)
	testwait.Until(t, "it is not reported any more", func() bool { return len(s.Problems()) == 0 })
}

// A directory of no kind is watched, too: otherwise a later file in it would be found only by the next sweep.
func TestProblems_fileInDirectoryOfNoKind(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := serve(t, root, files.Options{Rescan: time.Hour})
	misplaced := filepath.Join(root, "core", "gadgets", "a", "x.yaml")
	if err := os.MkdirAll(filepath.Dir(misplaced), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, podFile(root, "a", "x"), "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
	testwait.Until(t, "what came after the directory is served", func() bool { return len(s.objects()) == 1 })
	writeFile(t, misplaced, "apiVersion: v1\nkind: Gadget\nmetadata: {name: x}\n")
	testwait.Until(t, "it is reported", func() bool { return len(s.Problems()) == 1 })
}

func TestRun_beforeReplay_fails(t *testing.T) {
	t.Parallel()
	j, err := files.Open(t.TempDir(), files.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Run(context.Background(), nil); err == nil {
		t.Error("it ran, and would have taken every file for one of no object")
	}
}
