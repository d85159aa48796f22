package memory_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func openStore(t *testing.T, s *memory.Store) journal.Journal {
	t.Helper()
	j, err := s.OpenJournal(t.Context(), driver.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// replayed returns the records of a journal and its compacted revision as text.
func replayed(t *testing.T, j journal.Journal) string {
	t.Helper()
	var text strings.Builder
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		fmt.Fprintf(&text, "%d %s %q %v; ", r.Revision, r.Key, r.Value, r.Deleted)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%scompacted %d", text.String(), compacted)
}

// write appends records at the revisions above from.
func write(t *testing.T, j journal.Journal, from uint64, records ...journal.Record) {
	t.Helper()
	for i, r := range records {
		r.Revision = from + uint64(i) + 1
		if _, err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStore_isAJournal(t *testing.T) {
	storetest.RunJournal(t, func(testing.TB, string) (journal.Journal, error) {
		empty, err := memory.Read(strings.NewReader(`{"annexSnapshot":1,"revision":0,"objects":0}` + "\n"))
		if err != nil {
			return nil, err
		}
		return empty.OpenJournal(t.Context(), driver.Env{})
	}, false)
}

func TestStore_nextServer_hasTheObjects(t *testing.T) {
	t.Parallel()
	s := &memory.Store{}
	j := openStore(t, s)
	compacted, err := j.Replay(t.Context(), func(journal.Record) error { return nil })
	if err != nil || compacted == 0 {
		t.Fatalf("a new store begins at revision %d, %v", compacted, err)
	}
	write(t, j, compacted, journal.Record{Key: "/a", Value: []byte("1")})
	if _, err := s.OpenJournal(t.Context(), driver.Env{}); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("a second server: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Read(compacted + 1); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("the closed journal: %v", err)
	}
	again := openStore(t, s)
	if got, want := replayed(t, again), fmt.Sprintf(`%d /a "1" false; compacted %d`, compacted+1, compacted); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	write(t, again, compacted+1, journal.Record{Key: "/b"})
}

func TestStore_Fork_isIndependent(t *testing.T) {
	t.Parallel()
	s := &memory.Store{}
	if got := (&memory.Store{}).Fork(); got == nil {
		t.Fatal("a new store has no fork")
	}
	j := openStore(t, s)
	compacted, err := j.Replay(t.Context(), func(journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	write(t, j, compacted, journal.Record{Key: "/a", Value: []byte("1")}, journal.Record{Key: "/b", Value: []byte("2")})
	fork := s.Fork()
	write(t, j, compacted+2, journal.Record{Key: "/a", Value: []byte("base"), Previous: compacted + 1})
	if err := j.Trim(compacted+3, []uint64{compacted + 1}); err != nil {
		t.Fatal(err)
	}
	forked := openStore(t, fork)
	want := fmt.Sprintf(`%d /a "1" false; %d /b "2" false; compacted %d`, compacted+1, compacted+2, compacted)
	if got := replayed(t, forked); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	write(t, forked, compacted+2, journal.Record{Key: "/c", Value: []byte("fork")})
	if r, err := j.Read(compacted + 3); err != nil || string(r.Value) != "base" {
		t.Errorf("the base has %v, %v", r, err)
	}
	if r, err := forked.Read(compacted + 3); err != nil || string(r.Value) != "fork" {
		t.Errorf("the fork has %v, %v", r, err)
	}
}

func TestStore_Revision_isThatOfTheLastWrite(t *testing.T) {
	s := &memory.Store{}
	if got := s.Revision(); got != 0 {
		t.Errorf("a new store has revision %d", got)
	}
	j := openStore(t, s)
	first := s.Revision()
	if first == 0 {
		t.Error("an opened store has revision 0")
	}
	write(t, j, first, journal.Record{Key: "/a"}, journal.Record{Key: "/b"})
	if got := s.Revision(); got != first+2 {
		t.Errorf("revision %d after two writes; want %d", got, first+2)
	}
	if got := s.Fork().Revision(); got != first+2 {
		t.Errorf("a fork has revision %d; want %d", got, first+2)
	}
}

func TestStore_WriteTo_readsBack(t *testing.T) {
	t.Parallel()
	s, err := memory.Read(strings.NewReader(`{"annexSnapshot":1,"revision":9,"objects":0}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	j := openStore(t, s)
	expires := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	write(t, j, 9,
		journal.Record{Key: "/b", Value: []byte("{\"old\":1}\n")},
		journal.Record{Key: "/z", Value: []byte("{}\n")},
		journal.Record{Key: "/b", Value: []byte(`{"html":"<&>\u003c","n":1.0}` + "\n"), Previous: 10},
		journal.Record{Key: "/a", Value: []byte("k8s\x00\xff"), Expires: expires},
		journal.Record{Key: "/z", Deleted: true, Previous: 11},
		journal.Record{Key: "/c", Value: []byte(`{"no":"newline"}`)},
		journal.Record{Key: "/d", Value: []byte(`{ "spaces": 1 }` + "\n")},
	)
	var text bytes.Buffer
	n, err := s.WriteTo(&text)
	if err != nil || n != int64(text.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, text.Len(), err)
	}
	want := `{"annexSnapshot":1,"revision":16,"objects":4}
{"key":"/a","revision":13,"expires":"2030-01-02T03:04:05.000006Z","data":"azhzAP8="}
{"key":"/b","revision":12,"value":{"html":"<&>\u003c","n":1.0}}
{"key":"/c","revision":15,"data":"eyJubyI6Im5ld2xpbmUifQ=="}
{"key":"/d","revision":16,"data":"eyAic3BhY2VzIjogMSB9Cg=="}
`
	if text.String() != want {
		t.Errorf("%s\nwant %s", text.String(), want)
	}
	again, err := memory.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	var second bytes.Buffer
	if _, err := again.WriteTo(&second); err != nil || second.String() != want {
		t.Errorf("%v: %s", err, second.String())
	}
	restored := openStore(t, again)
	got := replayed(t, restored)
	if want := `12 /b "{\"html\":\"<&>\\u003c\",\"n\":1.0}\n" false; 13 /a "k8s\x00\xff" false; ` +
		`15 /c "{\"no\":\"newline\"}" false; 16 /d "{ \"spaces\": 1 }\n" false; compacted 16`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if r, err := restored.Read(13); err != nil || !r.Expires.Equal(expires) {
		t.Errorf("%v, %v", r.Expires, err)
	}
	write(t, restored, 16, journal.Record{Key: "/e"})
}

func TestStore_WriteTo_newStore_hasNothing(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	if _, err := (&memory.Store{}).WriteTo(&text); err != nil || text.String() != `{"annexSnapshot":1,"revision":0,"objects":0}`+"\n" {
		t.Errorf("%v: %s", err, text.String())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestStore_WriteTo_failure(t *testing.T) {
	t.Parallel()
	if _, err := (&memory.Store{}).WriteTo(full{}); err == nil || err.Error() != "write the snapshot: disk full" {
		t.Error(err)
	}
}

func TestRead_badSnapshot_isRefused(t *testing.T) {
	t.Parallel()
	const header = `{"annexSnapshot":1,"revision":9,"objects":1}` + "\n"
	for text, want := range map[string]string{
		"":                                     "the header: the file ends too early",
		"AnnexBkp":                             "the header: line 1: invalid character 'A'",
		`{"a":1}`:                              `the header: line 1: json: unknown field "a"`,
		`{}`:                                   "the header: the format has version 0, and this program reads version 1",
		strings.Replace(header, ":1", ":2", 1): "the header: the format has version 2",
		`{"annexSnapshot":1,"revision":18446744073709551615,"objects":0}`: "the header: revision 18446744073709551615 or 0 objects are out of range",
		`{"annexSnapshot":1,"revision":1,"objects":-1}`:                   "the header: revision 1 or -1 objects are out of range",
		header: "the file ends too early",
		header + `{"key":"/a","revision":9,"value":{}`:            "line 2: unexpected EOF",
		header + `{"key":"/a","revision":9}`:                      "line 2: an object has a key, and either a value or data",
		header + `{"key":"","revision":9,"value":{}}`:             "line 2: an object has a key, and either a value or data",
		header + `{"key":"/a","revision":9,"value":{},"data":""}`: "line 2: an object has a key, and either a value or data",
		header + `{"key":"/a","revision":0,"value":{}}`:           "line 2: revision 0 is not in 1 to 9",
		header + `{"key":"/a","revision":10,"value":{}}`:          "line 2: revision 10 is not in 1 to 9",
		header + `{"key":"/a","revision":9,"value":{}}` + "\nx":   "line 3: more objects than the 1 of the header",
		strings.Replace(header, `s":1`, `s":2`, 1) + `{"key":"/a","revision":9,"value":{}}` + "\n" +
			`{"key":"/a","revision":8,"value":{}}`: `line 3: another object has the key "/a" or the revision 8`,
		strings.Replace(header, `s":1`, `s":2`, 1) + `{"key":"/a","revision":9,"value":{}}` + "\n" +
			`{"key":"/b","revision":9,"value":{}}`: `line 3: another object has the key "/b" or the revision 9`,
	} {
		if _, err := memory.Read(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), "read the snapshot: "+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := memory.Read(io.MultiReader(strings.NewReader(header), failing{})); err == nil || err.Error() != "read the snapshot: no disk" {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("no disk") }

func TestStore_files_errorsNameFile(t *testing.T) {
	dir := t.TempDir()
	missing, broken := filepath.Join(dir, "missing", "file"), filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&memory.Store{}).WriteFile(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), filepath.Dir(missing)) {
		t.Errorf("write: %v", err)
	}
	if _, err := memory.ReadFile(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("read a missing file: %v", err)
	}
	if _, err := memory.ReadFile(broken); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("read a broken file: %v", err)
	}
	if err := (&memory.Store{}).WriteFile(os.DevNull); err == nil || !strings.Contains(err.Error(), os.DevNull+" is not a file") {
		t.Errorf("write to a device: %v", err)
	}
	if err := (&memory.Store{}).WriteFile(dir); err == nil || !strings.Contains(err.Error(), dir+" is not a file") {
		t.Errorf("write to a folder: %v", err)
	}
	for range 2 {
		if err := (&memory.Store{}).WriteFile(broken); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := memory.ReadFile(broken); err != nil {
		t.Errorf("read a file that was replaced: %v", err)
	}
}
