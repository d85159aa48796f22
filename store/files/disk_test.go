package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestDisk_renameNewAndExchange(t *testing.T) {
	d := disk{t.TempDir()}
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, content string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(d.root, name)); err != nil || string(got) != content {
			t.Errorf("%s is %q, want %q (%v)", name, got, content, err)
		}
	}
	put("a", "first")
	put("b", "second")
	if runtime.GOOS != "linux" {
		for _, err := range []error{d.RenameNew("a", "c"), d.Exchange("a", "b")} {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
		}
		return
	}
	if err := d.RenameNew("a", "b"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	want("a", "first")
	want("b", "second")
	if err := d.Exchange("a", "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with nothing: %v", err)
	}
	want("a", "first")
	if err := d.Exchange("a", "b"); err != nil {
		t.Error(err)
	}
	want("a", "second")
	want("b", "first")
	if err := d.RenameNew("a", "c"); err != nil {
		t.Error(err)
	}
	want("c", "second")
}
