package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/store/journal"
)

const scanned = 2000

// scanSample makes a journal whose records are in tables and have incompressible values.
func scanSample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for revision := uint64(2); revision < scanned+2; revision++ {
		value := make([]byte, 200)
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		wait, err := j.Append(journal.Record{Revision: revision, Key: fmt.Sprintf("/pods/%d", revision), Value: value})
		if err != nil {
			t.Fatal(err)
		}
		if revision == scanned+1 {
			if err := wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// scanAll returns the revisions read and the damages found.
func scanAll(t *testing.T, dir string) (read map[uint64]bool, damages []*journal.Damage, err error) {
	t.Helper()
	read = map[uint64]bool{}
	_, err = Scan(t.Context(), dir, Options{}, func(r journal.Record) error {
		if r.Key != fmt.Sprintf("/pods/%d", r.Revision) {
			t.Errorf("revision %d has key %s", r.Revision, r.Key)
		}
		read[r.Revision] = true
		return nil
	}, func(d *journal.Damage) { damages = append(damages, d) })
	return read, damages, err
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestScan_soundJournal_isReadUnchanged(t *testing.T) {
	dir := scanSample(t)
	before := contentsOfDir(t, dir)
	read, damages, err := scanAll(t, dir)
	if err != nil || len(damages) > 0 || len(read) != scanned {
		t.Errorf("read %d records, damages %v, error %v", len(read), damages, err)
	}
	if after := contentsOfDir(t, dir); after != before {
		t.Error("a file has changed")
	}
	if last, err := LastRevision(t.Context(), dir); err != nil || last != scanned+1 {
		t.Errorf("last revision %d, %v", last, err)
	}
}

func contentsOfDir(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %x\n", entry.Name(), data)
	}
	return all.String()
}

// TestScan_flippedBits_areNamed flips bits anywhere in the tables, one or several at a time. Every unread record must
// be named, and no wrong record may be read.
func TestScan_flippedBits_areNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("scans a journal once for each flipped bit")
	}
	original := scanSample(t)
	tables, err := filepath.Glob(filepath.Join(original, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	size := len(mustRead(t, tables[0]))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	silent := 0
	for range 60 {
		dir := copyDir(t, original)
		table := filepath.Join(dir, filepath.Base(tables[0]))
		data := mustRead(t, table)
		for range 1 + rng.IntN(3) {
			data[rng.IntN(size)] ^= 1 << rng.IntN(8)
		}
		if err := os.WriteFile(table, data, 0o600); err != nil {
			t.Fatal(err)
		}
		read, damages, err := scanAll(t, dir)
		if err != nil {
			if !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("scan: %v", err)
			}
			continue
		}
		for revision := uint64(2); revision < scanned+2; revision++ {
			if read[revision] {
				continue
			}
			named := false
			for _, d := range damages {
				named = named || d.First <= revision && revision <= d.Last
			}
			if !named {
				t.Fatalf("revision %d was neither read nor named: %v", revision, damages)
			}
		}
		if len(damages) == 0 {
			silent++
		} else if len(read) < scanned/2 {
			t.Logf("only %d records could be read: %v", len(read), damages)
		}
	}
	t.Logf("bits that made no difference to any record: %d of 60 rounds", silent)
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestScan_wrongRecordChecksum_isNamed(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	good := make([]byte, recordLength(journal.Record{Key: "/a"}))
	encodeRecord(good, journal.Record{Revision: 2, Key: "/a"})
	batch := j.db.NewBatch()
	bad := bytes.Clone(good)
	bad[len(bad)-1] ^= 1
	for revision, data := range map[uint64][]byte{2: good, 3: bad, 5: good} {
		if err := batch.Set(recordKey(revision), data, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Set(boundsKey, bounds{first: 2}.encode(), nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.db.Apply(batch, nil), j.Close()); err != nil {
		t.Fatal(err)
	}
	var found []string
	_, err = Scan(t.Context(), dir, Options{}, func(r journal.Record) error {
		found = append(found, fmt.Sprint("read ", r.Revision))
		return nil
	}, func(d *journal.Damage) { found = append(found, fmt.Sprintf("damaged %d-%d", d.First, d.Last)) })
	if err != nil {
		t.Fatal(err)
	}
	// Key 5 holds the record of 2, as its checksum reveals.
	if got, want := strings.Join(found, ", "), "read 2, damaged 3-3, damaged 4-4, damaged 5-5"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}

func TestScan_openJournal_isLocked(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	_, err = Scan(context.Background(), dir, Options{}, nil, nil)
	if !errors.Is(err, journal.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
}
