package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

// onlyFile fails the test unless a directory has just one file, with this content and mode.
func onlyFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Fatalf("the directory has %v, %v", entries, err)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		t.Errorf("the file has %q, %v, want %q", data, err, content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("the file's mode: %v, %v, want %v", info.Mode(), err, mode)
	}
}

func TestWrite_replacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for _, write := range []struct {
		content string
		mode    fs.FileMode
	}{{"old", 0o600}, {"new", 0o400}, {"", 0o600}} {
		if err := atomicfile.Write(path, []byte(write.content), write.mode); err != nil {
			t.Fatal(err)
		}
		onlyFile(t, path, write.content, write.mode)
	}
}

func TestWrite_failure_keepsOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, []byte("data"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := atomicfile.Write(filepath.Join(path, "missing", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that does not exist: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestDiscard_leavesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := atomicfile.Create(filepath.Join(dir, "backup"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("half"); err != nil {
		t.Fatal(err)
	}
	f.Discard()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestPlace_existingFile_isKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backup")
	place := func(content string) error {
		f, err := atomicfile.Create(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Discard()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		return f.Place()
	}
	if err := place("first"); err != nil {
		t.Fatal(err)
	}
	if err := place("second"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second file of the name: %v", err)
	}
	onlyFile(t, path, "first", 0o600)
}
