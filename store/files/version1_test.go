package files

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// treeV1 is a tree of the first format.
type treeV1 struct {
	t    *testing.T
	root string
}

func (f *treeV1) put(name string, data []byte) {
	f.t.Helper()
	path := filepath.Join(f.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *treeV1) state(ceiling, finished uint64) {
	f.put(
		statePath,
		seal(stateMagic, 1, fmt.Appendf(nil, `{"identity":"x","ceiling":%d,"finished":%d,"closed":false}`+"\n", ceiling, finished)),
	)
}

// record writes the record of a key; file maps the names of the file's hash fields to hashes.
func (f *treeV1) record(revision uint64, key string, value []byte, file map[string]string) {
	f.t.Helper()
	head, err := json.Marshal(
		map[string]any{"key": key, "revision": revision, "deleted": value == nil, "committed": "2026-01-02T03:04:05.000006Z", "file": file},
	)
	if err != nil {
		f.t.Fatal(err)
	}
	f.put(recordsV1+key+recordSuffix, seal(recordMagic, 1, append(append(head, '\n'), value...)))
}

func hashOf(content string) string {
	if content == "" {
		return ""
	}
	d := digestOf([]byte(content))
	return hex.EncodeToString(d[:])
}

func (f *treeV1) read(name string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.root, filepath.FromSlash(name)))
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	return string(data)
}

var layoutV1 = []driver.Resource{driver.Resource(*thing)}

func thingOf(name, spec string) []byte {
	return fmt.Appendf(
		nil,
		`{"apiVersion":"v1","kind":"Thing","metadata":{"name":%q,"namespace":"ns","uid":"uid-of-%s"},"spec":%q,"status":"fine"}`,
		name,
		name,
		spec,
	)
}

func renderedV1(t *testing.T, value []byte) string {
	t.Helper()
	content, ok := render(value, thing)
	if !ok {
		t.Fatalf("%s is not rendered", value)
	}
	return string(content)
}

// TestOpen_firstFormat_isConverted opens a tree in a state that a crash may leave.
func TestOpen_firstFormat_isConverted(t *testing.T) {
	t.Parallel()
	f := &treeV1{t, t.TempDir()}
	f.state(5000, 20)
	file := func(name string) string { return "core/things/ns/" + name + ".yaml" }

	kept := thingOf("kept", "1")
	f.record(
		10,
		"/things/ns/kept",
		kept,
		map[string]string{"suffix": ".yaml", "sha256": hashOf(renderedV1(t, kept)), "says": hashOf(renderedV1(t, kept))},
	)
	f.put(file("kept"), []byte(renderedV1(t, kept)))

	mine := "# mine\n" + renderedV1(t, thingOf("mine", "1"))
	f.record(
		11,
		"/things/ns/mine",
		thingOf("mine", "1"),
		map[string]string{"suffix": ".yaml", "sha256": hashOf(mine), "says": hashOf(renderedV1(t, thingOf("mine", "1")))},
	)
	f.put(file("mine"), []byte(mine))

	edited := renderedV1(t, thingOf("edited", "1"))
	f.record(
		12,
		"/things/ns/edited",
		thingOf("edited", "1"),
		map[string]string{"suffix": ".yaml", "sha256": hashOf(edited), "says": hashOf(edited)},
	)
	f.put(file("edited"), []byte(strings.Replace(edited, `"1"`, `"5"`, 1)))

	// Above 20, the files may not have been written.
	old := renderedV1(t, thingOf("behind", "1"))
	behind := thingOf("behind", "2")
	f.record(
		30,
		"/things/ns/behind",
		behind,
		map[string]string{
			"suffix":   ".yaml",
			"sha256":   hashOf(renderedV1(t, behind)),
			"says":     hashOf(renderedV1(t, behind)),
			"replaces": hashOf(old),
		},
	)
	f.put(file("behind"), []byte(old))
	f.record(31, "/things/ns/gone", nil, map[string]string{"suffix": ".yaml", "replaces": hashOf("gone")})
	f.put(file("gone"), []byte("gone"))

	f.record(
		15,
		"/things/ns/secret",
		[]byte("k8s:enc:x"),
		map[string]string{"suffix": ".bin", "sha256": hashOf("k8s:enc:x"), "says": hashOf("k8s:enc:x")},
	)
	f.put("core/things/ns/secret.bin", []byte("k8s:enc:x"))
	f.record(16, "/elsewhere", []byte("no file"), nil)

	// An edit that was out of its place when the process died.
	displaced := thingOf("displaced", "2")
	f.record(
		32,
		"/things/ns/displaced",
		displaced,
		map[string]string{"suffix": ".yaml", "sha256": hashOf(renderedV1(t, displaced)), "replaces": hashOf("before")},
	)
	f.put(file("displaced"), []byte(renderedV1(t, displaced)))
	f.put(tempDir+"/32.displaced.yaml", []byte("an edit"))
	f.put(tempDir+"/0.record", []byte("half a rec"))

	for opening := range 2 {
		j, err := Open(f.root, Options{Resources: layoutV1})
		if err != nil {
			t.Fatal(err)
		}
		held := map[string]string{}
		last := uint64(0)
		compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
			if r.Deleted || r.Revision <= 5000 {
				t.Errorf("replayed %v", r)
			}
			held[r.Key], last = string(r.Value), r.Revision
			return nil
		})
		if err != nil || compacted != last {
			t.Errorf("compacted %d, last %d, %v", compacted, last, err)
		}
		for key, want := range map[string]string{
			"/things/ns/kept": string(kept), "/things/ns/mine": string(thingOf("mine", "1")), "/things/ns/edited": string(thingOf("edited", "1")),
			"/things/ns/behind": string(behind), "/things/ns/secret": "k8s:enc:x", "/things/ns/displaced": string(displaced),
			"/elsewhere": "no file",
		} {
			if held[key] != want {
				t.Errorf("%s is %q, want %q", key, held[key], want)
			}
			delete(held, key)
		}
		if len(held) > 0 {
			t.Errorf("there is more: %v", held)
		}
		// Before Run, files are unchanged, except for unreadable ones.
		for name, want := range map[string]string{
			file("kept"): renderedV1(t, kept), file("mine"): mine, file("behind"): old, file("displaced"): "an edit",
			"core/things/ns/secret.bin": "",
		} {
			if got := f.read(name); opening == 0 && got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		proposed := map[string]string{}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- j.Run(ctx, func(_ context.Context, p *driver.Edit) ([]byte, error) {
				proposed[p.Key] = string(p.Document) // one at a time, because there is only one
				return nil, driver.Broken(errors.New("not now"))
			})
		}()
		<-j.Observed()
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(proposed) != 1 || !strings.Contains(proposed["/things/ns/edited"], `"spec":"5"`) {
			t.Errorf("proposed: %v", proposed)
		}
		for name, want := range map[string]string{
			file("kept"): renderedV1(t, kept), file("mine"): mine, file("behind"): renderedV1(t, behind), file("gone"): "",
			file("displaced"): "an edit",
		} {
			if got := f.read(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(f.root, filepath.FromSlash(recordsV1))); !os.IsNotExist(err) {
			t.Errorf("the records of format 1 are there still: %v", err)
		}
	}
}

func TestOpen_damagedFirstFormat_isRejected(t *testing.T) {
	t.Parallel()
	f := &treeV1{t, t.TempDir()}
	f.state(100, 100)
	f.record(10, "/things/ns/a", thingOf("a", "1"), nil)
	record := filepath.Join(f.root, filepath.FromSlash(recordsV1), "things", "ns", "a"+recordSuffix)
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, bytes.Replace(data, []byte("fine"), []byte("dire"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.root, Options{Resources: layoutV1}); !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), record) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(record, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.root, filepath.FromSlash(statePath))); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(
		f.root,
		Options{Resources: layoutV1},
	); !errors.Is(err, journal.ErrDamaged) ||
		!strings.Contains(err.Error(), "state is missing") {
		t.Errorf("got %v", err)
	}
}
