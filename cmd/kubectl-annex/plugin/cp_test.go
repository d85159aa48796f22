package plugin

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnpack_outside_isRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked   string
		entries []tar.Header
		refused bool
		files   []string
	}{
		"a file": {"x", []tar.Header{{Name: "x", Typeflag: tar.TypeReg}}, false, []string{"to"}},
		"a folder": {"x", []tar.Header{{Name: "x/", Typeflag: tar.TypeDir}, {Name: "x/y", Typeflag: tar.TypeReg}},
			false, []string{"to/y"}},
		"all of a folder": {".", []tar.Header{{Name: "./", Typeflag: tar.TypeDir}, {Name: "./y", Typeflag: tar.TypeReg}},
			false, []string{"to/y"}},
		"a path that leads out":   {"x", []tar.Header{{Name: "x/../../evil", Typeflag: tar.TypeReg}}, true, nil},
		"one that comes back":     {"x", []tar.Header{{Name: "x/../x", Typeflag: tar.TypeReg}}, true, nil},
		"out of all of a folder":  {".", []tar.Header{{Name: "../evil", Typeflag: tar.TypeReg}}, true, nil},
		"a path from the root":    {".", []tar.Header{{Name: "/evil", Typeflag: tar.TypeReg}}, true, nil},
		"another name":            {"x", []tar.Header{{Name: "y", Typeflag: tar.TypeReg}}, true, nil},
		"a name that only begins": {"x", []tar.Header{{Name: "xy", Typeflag: tar.TypeReg}}, true, nil},
		"a file by two names": {"x", []tar.Header{{Name: "x/a", Typeflag: tar.TypeReg},
			{Name: "x/b", Typeflag: tar.TypeLink, Linkname: "x/a"}}, false, []string{"to/a", "to/b"}},
		"another name of one elsewhere":     {"x", []tar.Header{{Name: "x/b", Typeflag: tar.TypeLink, Linkname: "../evil"}}, true, nil},
		"another name of one from the root": {"x", []tar.Header{{Name: "x/b", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, true, nil},
		"through a link that is sent": {"x", []tar.Header{
			{Name: "x/out", Typeflag: tar.TypeSymlink, Linkname: "../.."}, {Name: "x/out/evil", Typeflag: tar.TypeReg},
		}, false, []string{"to/out/evil"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent bytes.Buffer
			archive := tar.NewWriter(&sent)
			for _, entry := range test.entries {
				entry.Mode = 0o644
				if err := archive.WriteHeader(&entry); err != nil {
					t.Fatal(err)
				}
			}
			archive.Close()
			dir := t.TempDir()
			work := filepath.Join(dir, "work")
			if err := os.Mkdir(work, 0o755); err != nil {
				t.Fatal(err)
			}
			p := newPlugin(Options{}, IOStreams{ErrOut: &bytes.Buffer{}})
			err := p.unpack(&sent, test.asked, filepath.Join(work, "to"))
			if errors.Is(err, errOutside) != test.refused || !test.refused && err != nil {
				t.Errorf("%v", err)
			}
			var files []string
			_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, _ error) error {
				if !entry.IsDir() {
					below, _ := filepath.Rel(work, path)
					files = append(files, filepath.ToSlash(below))
				}
				return nil
			})
			if strings.Join(files, " ") != strings.Join(test.files, " ") {
				t.Errorf("files %v, want %v", files, test.files)
			}
		})
	}
}

// Existing files, such as links, must not lead outside either, and are not written through.
func TestUnpack_existingLink_isRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		entry tar.Header
		make  func(work string) error
	}{
		"a link to a folder elsewhere": {tar.Header{Name: "x/there/evil"}, func(work string) error {
			return os.Symlink(filepath.Join(work, "..", "other"), filepath.Join(work, "to", "there"))
		}},
		"a link to a folder beside it": {tar.Header{Name: "x/there/evil"},
			func(work string) error { return os.Symlink("../beside", filepath.Join(work, "to", "there")) }},
		"a link to a file beside it": {tar.Header{Name: "x/there"},
			func(work string) error { return os.Symlink("../beside/file", filepath.Join(work, "to", "there")) }},
		"a link to what is not there": {tar.Header{Name: "x/there"},
			func(work string) error { return os.Symlink("../beside/new", filepath.Join(work, "to", "there")) }},
		"a pipe": {tar.Header{Name: "x/there"},
			func(work string) error { return exec.Command("mkfifo", filepath.Join(work, "to", "there")).Run() }},
		"another name of what a link leads to": {tar.Header{Name: "x/new", Typeflag: tar.TypeLink, Linkname: "x/there/file"},
			func(work string) error {
				return os.Symlink("../beside", filepath.Join(work, "to", "there"))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			work := filepath.Join(dir, "work")
			for _, folder := range []string{filepath.Join(work, "to"), filepath.Join(work, "beside"), filepath.Join(dir, "other")} {
				if err := os.MkdirAll(folder, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(work, "beside", "file"), []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := test.make(work); err != nil {
				t.Fatal(err)
			}
			var sent bytes.Buffer
			archive := tar.NewWriter(&sent)
			test.entry.Mode = 0o644
			if err := archive.WriteHeader(&test.entry); err != nil {
				t.Fatal(err)
			}
			archive.Close()
			if err := newPlugin(
				Options{},
				IOStreams{ErrOut: &bytes.Buffer{}},
			).unpack(&sent, "x", filepath.Join(work, "to")); !errors.Is(
				err,
				errLink,
			) {
				t.Errorf("it is not refused: %v", err)
			}
			kept, err := os.ReadFile(filepath.Join(work, "beside", "file"))
			if err != nil || string(kept) != "mine" {
				t.Errorf("the file beside the destination is %q now, %v", kept, err)
			}
			for _, folder := range []string{filepath.Join(work, "beside"), filepath.Join(dir, "other")} {
				entries, err := os.ReadDir(folder)
				if err != nil {
					t.Fatal(err)
				}
				for _, entry := range entries {
					if entry.Name() != "file" {
						t.Errorf("%s is in %s", entry.Name(), folder)
					}
				}
			}
		})
	}
}

// growing appends to a file with each write to itself.
type growing struct {
	file string
	to   bytes.Buffer
}

func (g *growing) Write(p []byte) (int, error) {
	file, err := os.OpenFile(g.file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if _, err := file.WriteString("more"); err != nil {
		return 0, err
	}
	return g.to.Write(p)
}

// A log that grows meanwhile is copied up to its size at the start.
func TestPack_growingFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	to := &growing{file: file}
	if _, err := pack(to, file, "log"); err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(&to.to)
	if _, err := archive.Next(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(archive); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
}
