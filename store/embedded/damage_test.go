package embedded_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/annexapi/annex/internal/testing/crashfs"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// image is the content of a journal's directory.
type image map[string][]byte

const imageDir = "journal"

func takeImage(t testing.TB, files vfs.FS) image {
	t.Helper()
	names, err := files.List(imageDir)
	if err != nil {
		t.Fatal(err)
	}
	taken := image{}
	for _, name := range names {
		file, err := files.Open(files.PathJoin(imageDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if taken[name], err = io.ReadAll(file); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return taken
}

func (i image) restore(t testing.TB) *vfs.MemFS {
	t.Helper()
	files := vfs.NewMem()
	if err := files.MkdirAll(imageDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range i {
		writeFile(t, files, files.PathJoin(imageDir, name), data)
	}
	return files
}

// changedFiles returns the names of the files that differ, except the lock.
func changedFiles(before, after image) (names []string) {
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a, inA := before[name]
		b, inB := after[name]
		if name != "LOCK" && (inA != inB || !bytes.Equal(a, b)) {
			names = append(names, name)
		}
	}
	return names
}

func sameRecords(a, b []journal.Record) bool {
	return slices.EqualFunc(a, b, func(a, b journal.Record) bool { return reflect.DeepEqual(a, b) })
}

func writeFile(t testing.TB, files vfs.FS, path string, data []byte) {
	t.Helper()
	file, err := files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 0 {
		if _, err := file.Write(bytes.Clone(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// bigRecord makes up a record of about 1 KB that does not compress.
func bigRecord(revision uint64) journal.Record {
	r := record(revision)
	rng := rand.New(rand.NewPCG(revision, 1))
	r.Value = make([]byte, 1000)
	for i := range len(r.Value) / 8 {
		binary.LittleEndian.PutUint64(r.Value[i*8:], rng.Uint64())
	}
	return r
}

// images returns two journals with the same records in several tables and in the log: a closed journal, and the
// journal of a killed process.
func images(t testing.TB) (closed, killed image, want []journal.Record) {
	t.Helper()
	files := crashfs.New()
	j, err := embedded.Open(imageDir, embedded.Options{FS: files, MemTableSize: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	const records = 2000
	held := map[uint64]journal.Record{}
	var waits []func() error
	for revision := uint64(1); revision <= records; revision++ {
		held[revision] = bigRecord(revision)
		wait, err := j.Append(held[revision])
		if err != nil {
			t.Fatal(err)
		}
		// Several records share a sync, as they do under load.
		if waits = append(waits, wait); len(waits) == 50 || revision > records-5 {
			for _, wait := range waits {
				if err := wait(); err != nil {
					t.Fatal(err)
				}
			}
			waits = waits[:0]
		}
		if revision%500 == 250 {
			var drop []uint64
			for r := revision - 240; r < revision-100; r += 3 {
				drop = append(drop, r)
				delete(held, r)
			}
			if err := j.Trim(revision-50, drop); err != nil {
				t.Fatal(err)
			}
		}
	}
	killed = takeImage(t, files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	closed = takeImage(t, files)
	for _, revision := range slices.Sorted(maps.Keys(held)) {
		want = append(want, held[revision])
	}
	return closed, killed, want
}

// flippedBits flips one random bit of a random file per trial. ANNEX_BIT_FLIPS sets the number of trials.
func flippedBits(t *testing.T, faults *storetest.Faults) {
	rng := storetest.Seeded(t)
	closed, killed, want := images(t)
	type outcome struct{ reported, harmless int }
	outcomes := map[string]*outcome{}
	for range storetest.Trials(t, "ANNEX_BIT_FLIPS", 60) {
		state, original := "closed", closed
		if rng.IntN(2) == 0 {
			state, original = "killed", killed
		}
		// Choose the kind of file first: the MANIFEST has few bytes compared with the tables.
		kinds := map[string][]string{}
		for name, data := range original {
			if len(data) > 0 {
				kinds[kindOf(name)] = append(kinds[kindOf(name)], name)
			}
		}
		kind := slices.Sorted(maps.Keys(kinds))[rng.IntN(len(kinds))]
		names := slices.Sorted(slices.Values(kinds[kind]))
		name := names[rng.IntN(len(names))]
		bit := rng.IntN(len(original[name]) * 8)
		where := fmt.Sprintf("%s journal, %s, bit %d", state, name, bit)

		flipped := maps.Clone(original)
		flipped[name] = bytes.Clone(original[name])
		flipped[name][bit/8] ^= 1 << (bit % 8)
		files := flipped.restore(t)
		faults.Injected()

		if outcomes[state+" "+kind] == nil {
			outcomes[state+" "+kind] = &outcome{}
		}
		count := outcomes[state+" "+kind]
		j, err := embedded.Open(imageDir, embedded.Options{FS: files})
		if err != nil {
			count.reported++
			if kind != "OPTIONS" && !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("%s: error %v, want ErrDamaged", where, err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: error of several lines: %v", where, err)
			}
			// A compaction, which runs after all checks, may be the first to meet the damage of a table.
			if changed := changedFiles(flipped, takeImage(t, files)); kind != "table" && len(changed) > 0 {
				t.Errorf("%s: the refused journal was changed: %v", where, changed)
			}
			continue
		}
		got, _, err := replay(j)
		switch {
		case err != nil && !errors.Is(err, journal.ErrDamaged):
			t.Errorf("%s: error %v, want ErrDamaged", where, err)
		case err != nil:
			count.reported++
		case !sameRecords(want, got):
			faults.Corrupted(t, "%s: %d records, want %d; or other content", where, len(got), len(want))
		default:
			count.harmless++
		}
		intact := err == nil
		got, err = readMany(j, want)
		switch {
		case err != nil && !errors.Is(err, journal.ErrDamaged):
			t.Errorf("%s: error %v from ReadMany, want ErrDamaged", where, err)
		case err != nil && !sameRecords(want[:len(got)], got), err == nil && intact && !sameRecords(want, got):
			faults.Corrupted(t, "%s: ReadMany has %d records of %d; or other content", where, len(got), len(want))
		}
		_ = j.Close()
	}
	for _, kind := range slices.Sorted(maps.Keys(outcomes)) {
		t.Logf("%s: %d reported, %d without effect", kind, outcomes[kind].reported, outcomes[kind].harmless)
	}
}

// readMany reads the revisions of some records. With an error, it returns the records before it.
func readMany(j *embedded.Journal, of []journal.Record) (got []journal.Record, err error) {
	revisions := make([]uint64, len(of))
	for i := range of {
		revisions[i] = of[i].Revision
	}
	err = j.ReadMany(revisions, func(r journal.Record) bool {
		r.Value = bytes.Clone(r.Value)
		got = append(got, r)
		return true
	})
	return got, err
}

func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, ".sst"):
		return "table"
	case strings.HasSuffix(name, ".log"):
		return "log"
	default:
		kind, _, _ := strings.Cut(name, "-")
		return kind
	}
}

// rewrite opens the database beneath a closed journal and changes it.
func rewrite(t testing.TB, files vfs.FS, change func(*pebble.DB)) {
	t.Helper()
	db, err := pebble.Open(imageDir, &pebble.Options{FS: files, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{t}})
	if err != nil {
		t.Fatal(err)
	}
	change(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{ t testing.TB }

func (quiet) Infof(string, ...any)             {}
func (quiet) Errorf(string, ...any)            {}
func (q quiet) Fatalf(format string, a ...any) { q.t.Errorf(format, a...) }

func keyOf(revision uint64) []byte { return binary.BigEndian.AppendUint64([]byte("h/"), revision) }

func damagedRecords(t *testing.T, faults *storetest.Faults) {
	set := func(key, value []byte) func(*pebble.DB) error {
		return func(db *pebble.DB) error { return db.Set(key, value, pebble.Sync) }
	}
	for _, c := range []struct {
		name      string
		change    func(db *pebble.DB) error
		openFails bool
		want      string
		readable  bool // Read cannot distinguish the damaged revision from a trimmed one
	}{
		{name: "other bytes", want: "revision 4:", change: set(keyOf(4), []byte("garbage, long enough to be a record of some kind"))},
		{name: "too short", want: "revision 4:", change: set(keyOf(4), []byte("x"))},
		{name: "another record", want: "revision 4:", change: func(db *pebble.DB) error {
			value, closer, err := db.Get(keyOf(5))
			if err != nil {
				return err
			}
			return errors.Join(db.Set(keyOf(4), value, pebble.Sync), closer.Close())
		}},
		{name: "a missing record", want: "revision 4:", readable: true, change: func(db *pebble.DB) error {
			return db.Delete(keyOf(4), pebble.Sync)
		}},
		{name: "a missing last record", openFails: true, want: "revision 6:", change: func(db *pebble.DB) error {
			return db.Delete(keyOf(6), pebble.Sync)
		}},
		{name: "all records missing", openFails: true, want: "revision 2:", change: func(db *pebble.DB) error {
			return db.DeleteRange([]byte("h/"), []byte("h0"), pebble.Sync)
		}},
		{name: "a strange key", openFails: true, want: "not a key of a record", change: set([]byte("h/4"), []byte("x"))},
		{name: "no format", openFails: true, want: "has records but no format", change: func(db *pebble.DB) error {
			return db.Delete([]byte("m/format"), pebble.Sync)
		}},
		{name: "broken format", openFails: true, want: "journal format", change: set([]byte("m/format"), make([]byte, 24))},
		{name: "no bounds", openFails: true, want: "has records but no bounds", change: func(db *pebble.DB) error {
			return db.Delete([]byte("m/bounds"), pebble.Sync)
		}},
		{name: "broken bounds", openFails: true, want: "journal bounds", change: set([]byte("m/bounds"), make([]byte, 29))},
	} {
		t.Run(c.name, func(t *testing.T) {
			faults.Injected()
			files := vfs.NewMem()
			j := mustOpen(t, imageDir, embedded.Options{FS: files})
			appendRecords(t, j, 1, 6)
			if err := j.Trim(1, []uint64{1}); err != nil {
				t.Fatal(err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			rewrite(t, files, func(db *pebble.DB) {
				if err := c.change(db); err != nil {
					t.Fatal(err)
				}
			})

			// Twice: reporting the damage must not repair or forget it.
			for range 2 {
				j, err := embedded.Open(imageDir, embedded.Options{FS: files})
				if c.openFails {
					if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), c.want) {
						t.Fatalf("error %v, want ErrDamaged and %q", err, c.want)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = replay(j)
				if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("replay: error %v, want ErrDamaged and %q", err, c.want)
				}
				if _, err := j.Read(4); !c.readable && !errors.Is(err, journal.ErrDamaged) {
					t.Errorf("read: error %v, want ErrDamaged", err)
				}
				intact := []journal.Record{record(2), record(3), record(5), record(6)}
				many, err := readMany(j, slices.Insert(slices.Clone(intact), 2, record(4)))
				switch {
				case c.readable && (err != nil || !sameRecords(intact, many)):
					t.Errorf("ReadMany: %d records, %v; want all but revision 4", len(many), err)
				case !c.readable && (!errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), c.want) || !sameRecords(intact[:2], many)):
					t.Errorf("ReadMany: %d records, error %v; want ErrDamaged and %q after two", len(many), err, c.want)
				}
				for _, revision := range []uint64{2, 3, 5, 6} {
					got, err := j.Read(revision)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(record(revision), got); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestOpen_newerFormat_isRejectedUnchanged(t *testing.T) {
	files := vfs.NewMem()
	j := mustOpen(t, imageDir, embedded.Options{FS: files})
	appendRecords(t, j, 1, 3)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	newer := binary.BigEndian.AppendUint32(nil, 3) // above formatVersion
	newer = append(newer, []byte("sixteen bytes id and what the future adds")...)
	newer = binary.BigEndian.AppendUint32(newer, crc32.Checksum(newer, crc32.MakeTable(crc32.Castagnoli)))
	rewrite(t, files, func(db *pebble.DB) {
		if err := db.Set([]byte("m/format"), newer, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	})
	before := takeImage(t, files)
	_, err := embedded.Open(imageDir, embedded.Options{FS: files})
	if err == nil || errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "format 3") {
		t.Errorf("error %v", err)
	}
	if changed := changedFiles(before, takeImage(t, files)); len(changed) > 0 {
		t.Errorf("the refused journal was changed: %v", changed)
	}
}

// lostEnds covers the two cases that Pebble takes for a power cut, and that only the watermark distinguishes.
func lostEnds(t *testing.T, faults *storetest.Faults) {
	_, killed, _ := images(t)
	newest := func(kind string) string {
		var names []string
		for name := range killed {
			if kindOf(name) == kind {
				names = append(names, name)
			}
		}
		return slices.Max(names)
	}
	for _, c := range []struct {
		name   string
		change func(image)
	}{
		{"the newest log is emptied", func(i image) { i[newest("log")] = nil }},
		{"the newest log is missing", func(i image) { delete(i, newest("log")) }},
		{"the MANIFEST has lost its last edit", func(i image) {
			name := newest("MANIFEST")
			i[name] = i[name][:len(i[name])-1]
		}},
		{"the MANIFEST is zeroed at its end", func(i image) {
			name := newest("MANIFEST")
			i[name] = append(bytes.Clone(i[name][:len(i[name])-20]), make([]byte, 20)...)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := maps.Clone(killed)
			c.change(changed)
			faults.Injected()
			for range 2 {
				if _, err := embedded.Open(imageDir, embedded.Options{FS: changed.restore(t)}); !errors.Is(err, journal.ErrDamaged) {
					faults.Lost(t, 1, "error %v, want ErrDamaged", err)
				}
			}
		})
	}
}

func TestOpen_missingWatermark_succeeds(t *testing.T) {
	closed, killed, want := images(t)
	for name, taken := range map[string]image{"closed": closed, "killed": killed} {
		delete(taken, "WITNESS")
		files := taken.restore(t)
		j, err := embedded.Open(imageDir, embedded.Options{FS: files})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, _, err := replay(j)
		if err != nil || !sameRecords(want, got) {
			t.Errorf("%s: %d records, want %d, error %v", name, len(got), len(want), err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpen_damagedOptionsFile_isNamedAndNotNeeded(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{})
	if err := errors.Join(appendRecord(j, 1), j.Close()); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		if err := os.WriteFile(path, []byte("[Version\n\x00garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err = embedded.Open(dir, embedded.Options{})
	if err == nil || !strings.Contains(err.Error(), "OPTIONS-") || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a damaged OPTIONS file: %v", err)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	j = mustOpen(t, dir, embedded.Options{})
	defer j.Close()
	if records, _, err := replay(j); err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
}
