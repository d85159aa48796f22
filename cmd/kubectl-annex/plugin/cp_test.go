package plugin

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestACopyStaysBelowItsDestination(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked   string
		entries []tar.Header
		refused bool
		files   []string
	}{
		"a file":                  {"x", []tar.Header{{Name: "x", Typeflag: tar.TypeReg}}, false, []string{"to"}},
		"a folder":                {"x", []tar.Header{{Name: "x/", Typeflag: tar.TypeDir}, {Name: "x/y", Typeflag: tar.TypeReg}}, false, []string{"to/y"}},
		"all of a folder":         {".", []tar.Header{{Name: "./", Typeflag: tar.TypeDir}, {Name: "./y", Typeflag: tar.TypeReg}}, false, []string{"to/y"}},
		"a path that leads out":   {"x", []tar.Header{{Name: "x/../../evil", Typeflag: tar.TypeReg}}, true, nil},
		"one that comes back":     {"x", []tar.Header{{Name: "x/../x", Typeflag: tar.TypeReg}}, true, nil},
		"out of all of a folder":  {".", []tar.Header{{Name: "../evil", Typeflag: tar.TypeReg}}, true, nil},
		"a path from the root":    {".", []tar.Header{{Name: "/evil", Typeflag: tar.TypeReg}}, true, nil},
		"another name":            {"x", []tar.Header{{Name: "y", Typeflag: tar.TypeReg}}, true, nil},
		"a name that only begins": {"x", []tar.Header{{Name: "xy", Typeflag: tar.TypeReg}}, true, nil},
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

// A link that was there before is no way out either.
func TestACopyDoesNotFollowLinksOutOfItsDestination(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	work, other := filepath.Join(dir, "work"), filepath.Join(dir, "other")
	for _, folder := range []string{filepath.Join(work, "to"), other} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(work, "to", "link")); err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	archive := tar.NewWriter(&sent)
	if err := archive.WriteHeader(&tar.Header{Name: "x/link/evil", Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	archive.Close()
	if err := newPlugin(Options{}, IOStreams{ErrOut: &bytes.Buffer{}}).unpack(&sent, "x", filepath.Join(work, "to")); err == nil {
		t.Error("it was written through the link")
	}
	if _, err := os.Stat(filepath.Join(other, "evil")); err == nil {
		t.Error("the file is outside of the destination")
	}
}
