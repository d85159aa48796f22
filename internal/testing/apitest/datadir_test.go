package apitest_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// record is the record of a data directory, with the fields of its format page.
type record struct {
	Format                     int
	Server, Storage, CreatedBy string
	CopiedTo                   string
	StorageOf, Directories     map[string]string
}

func readRecord(t *testing.T, dir string) record {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "annex.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// snapshotOf returns everything below a directory: modes, times and contents.
func snapshotOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var sum [sha256.Size]byte
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(data)
		}
		all[path] = fmt.Sprintf("%v %v %x", info.Mode(), info.ModTime(), sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func named(name string) annex.Server {
	s := shop()
	s.Name = name
	return s
}

var widgetsIn = func(d driver.Driver) map[schema.GroupResource]driver.Driver {
	return map[schema.GroupResource]driver.Driver{{Group: "shop.example.com", Resource: "widgets"}: d}
}

func TestDataDir_refused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second annex.Options
		server        string
		want          string
	}{
		"files, then the default": {
			first: annex.Options{Storage: files.Dir("")},
			want: "data directory DIR belongs to a server whose objects are in the storage files, not in embedded: set Options.Storage to " +
				"files, or Options.DataDir to another directory",
		},
		"embedded, then files": {
			second: annex.Options{Storage: files.Dir("")},
			want: "data directory DIR belongs to a server whose objects are in the storage embedded, not in files: set Options.Storage to " +
				"embedded, or Options.DataDir to another directory",
		},
		"embedded, then memory": {
			second: annex.Options{Storage: memory.Storage()},
			want: "data directory DIR belongs to a server whose objects are in the storage embedded, not in memory: set Options.Storage " +
				"to embedded, or Options.DataDir to another directory",
		},
		"another server": {
			server: "store",
			want:   "data directory DIR belongs to the server shop, not to store: set Options.DataDir to another directory",
		},
		"another server, in memory": {
			first: annex.Options{Storage: memory.Storage()}, second: annex.Options{Storage: memory.Storage()},
			server: "store",
			want:   "data directory DIR belongs to the server shop, not to store: set Options.DataDir to another directory",
		},
		"a kind in files, then not": {
			first: annex.Options{StorageOf: widgetsIn(files.Dir(""))},
			want: "data directory DIR belongs to a server whose objects of widgets.shop.example.com are in the storage files, not in " +
				"embedded: add Options.StorageOf widgets.shop.example.com=files",
		},
		"files elsewhere, then in the data directory": {
			first:  annex.Options{Storage: files.Dir("DIR.elsewhere")},
			second: annex.Options{Storage: files.Dir("")},
			want: "data directory DIR belongs to a server whose storage files is in DIR.elsewhere, but DIR/objects has no such " +
				"storage: set Options.Drivers files to DIR.elsewhere",
		},
	} {
		for _, older := range []bool{false, true} {
			if older && (strings.Contains(name, "elsewhere") || strings.Contains(name, "a kind")) {
				continue // nothing in the directory shows it
			}
			t.Run(fmt.Sprintf("%s, of an earlier build %v", name, older), func(t *testing.T) {
				t.Parallel()
				if os.Getenv(testStorage) != "" {
					t.Skip("the storage is chosen for all tests")
				}
				dir := filepath.Join(t.TempDir(), "data")
				test := test // its options get the directory of this subtest
				for _, o := range []*annex.Options{&test.first, &test.second} {
					o.DataDir, o.Listen = dir, anyPort
					if o.Storage == nil {
						o.Storage = embedded.Dir("")
					}
					if d, ok := o.Storage.(driver.Directory); ok && d.Name() == files.Name {
						o.Storage = files.Dir(strings.ReplaceAll(d.Location(""), "DIR", dir))
					}
				}
				instance, stop := run(t, named("shop"), test.first)
				clientOf(t, instance).create("kept")
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if older {
					if err := os.Remove(filepath.Join(dir, "annex.json")); err != nil {
						t.Fatal(err)
					}
				}
				before := snapshotOf(t, dir)
				server := test.server
				if server == "" {
					server = "shop"
				}
				instance, err := annex.New(t.Context(), named(server), test.second)
				if err == nil {
					_ = instance.Close()
					t.Fatal("the directory was taken")
				}
				if want := strings.ReplaceAll(test.want, "DIR", dir); err.Error() != want || !errors.As(err, new(*config.Error)) {
					t.Errorf("got  %v\nwant %s", err, want)
				}
				if after := snapshotOf(t, dir); !maps.Equal(before, after) {
					t.Errorf("the directory was changed: %v became %v", before, after)
				}

				instance, _ = run(t, named("shop"), test.first)
				c := clientOf(t, instance)
				if test.first.Storage.Name() != memory.Name {
					c.get(widgetsPath + "/kept").want(http.StatusOK)
				}
				if r := readRecord(t, dir); r.Format != 1 || r.Server != "shop" || r.CreatedBy == "" {
					t.Errorf("record %+v", r)
				}
			})
		}
	}
}

func TestDataDir_accepted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second annex.Options
		want          string
	}{
		"memory forgets":    {annex.Options{Storage: memory.Storage()}, annex.Options{}, "embedded"},
		"said or not":       {annex.Options{}, annex.Options{Storage: embedded.Dir("")}, "embedded"},
		"a kind in memory":  {annex.Options{StorageOf: widgetsIn(memory.Storage())}, annex.Options{}, "embedded"},
		"a kind in files":   {annex.Options{StorageOf: widgetsIn(files.Dir(""))}, annex.Options{StorageOf: widgetsIn(files.Dir(""))}, "embedded"},
		"files, said again": {annex.Options{Storage: files.Dir("")}, annex.Options{Storage: files.Dir("")}, "files"},
	} {
		for _, older := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, of an earlier build %v", name, older), func(t *testing.T) {
				t.Parallel()
				if os.Getenv(testStorage) != "" {
					t.Skip("the storage is chosen for all tests")
				}
				dir := filepath.Join(t.TempDir(), "data")
				test := test // its options get the directory of this subtest
				test.first.DataDir, test.second.DataDir = dir, dir
				_, stop := run(t, shop(), test.first)
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if older {
					if err := os.Remove(filepath.Join(dir, "annex.json")); err != nil {
						t.Fatal(err)
					}
				}
				run(t, shop(), test.second)
				if r := readRecord(t, dir); r.Storage != test.want {
					t.Errorf("record %+v, want %s", r, test.want)
				}
			})
		}
	}
}

// A directory of an earlier build that others could read is closed to them and kept out of repositories.
func TestDataDir_open(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, shop(), annex.Options{Storage: embedded.Dir(""), DataDir: dir})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode %04o", info.Mode().Perm())
	}
	if got, err := os.ReadFile(filepath.Join(dir, ".gitignore")); err != nil || !strings.HasPrefix(string(got), "*\n") {
		t.Errorf(".gitignore: %q, %v", got, err)
	}
}
