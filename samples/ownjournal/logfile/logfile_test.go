package logfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

func open(_ testing.TB, dir string) (journal.Journal, error) { return Open(dir) }

func TestJournal(t *testing.T) { storetest.RunJournal(t, open, true) }

func TestStorage(t *testing.T) {
	storetest.RunStorage(t, "logfile", storetest.AboveJournal(open))
}

func TestRestart(t *testing.T) { storetest.RunRestart(t, open) }

func TestAppend_killedProcess_losesNothing(t *testing.T) { storetest.RunCrash(t, "logfile", open) }

func TestLinearizable_killedProcess(t *testing.T) {
	storetest.RunLinearizableKilled(t, "logfile, kills", open)
}

// The crashes are power cuts, which lose a random part of the data that was not synced.
func TestLinearizable(t *testing.T) {
	var dir string
	var running *log
	rng := storetest.Seeded(t)
	storetest.RunLinearizable(t, "logfile, power cuts", storetest.Subject{
		Start: storetest.StartAboveJournal(func(t testing.TB, first string) (journal.Journal, error) {
			if dir == "" {
				dir = first
			}
			j, err := Open(dir)
			if err == nil {
				running = j.(*log)
			}
			return j, err
		}),
		Crash: func(t testing.TB) {
			running.syncing.Lock()
			running.mu.Lock()
			data, err := os.ReadFile(running.path)
			durable := int(running.durable)
			running.mu.Unlock()
			running.syncing.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			// A file system may have recorded a longer file than the data that it has written.
			data = data[:durable+rng.IntN(len(data)-durable+1)]
			if unsynced := data[durable:]; len(unsynced) > 0 {
				clear(unsynced[rng.IntN(len(unsynced)):])
			}
			dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, logName), data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func record(revision uint64, size int) journal.Record {
	return journal.Record{
		Revision:  revision,
		Key:       fmt.Sprintf("/notes/%d", revision),
		Value:     bytes.Repeat([]byte{byte(revision)}, size),
		Committed: time.Unix(int64(revision), 0).UTC(),
	}
}

// filled returns a directory with a log of records, each of which was waited for, and the offsets at which the frames
// end.
func filled(t *testing.T, records, size int) (dir string, ends []int64) {
	t.Helper()
	dir = t.TempDir()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for i := range records {
		appendTo(t, j, record(uint64(i)+2, size))
		ends = append(ends, j.(*log).end)
	}
	return dir, ends
}

func appendTo(t *testing.T, j journal.Journal, r journal.Record) {
	t.Helper()
	wait, err := j.Append(r)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatalf("append revision %d: %v", r.Revision, err)
	}
}

// replayed counts the records of a log with this data, and checks that filled appended them first.
func replayed(t *testing.T, data []byte, size int) (records int, err error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, logName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := Open(dir)
	if err != nil {
		if after, _ := os.ReadFile(filepath.Join(dir, logName)); !bytes.Equal(after, data) {
			t.Error("a log that was not opened was changed")
		}
		return 0, err
	}
	defer j.Close()
	_, err = j.Replay(t.Context(), func(r journal.Record) error {
		records++
		if want := record(uint64(records)+1, size); r.Revision != want.Revision || r.Key != want.Key || !bytes.Equal(r.Value, want.Value) {
			t.Errorf("record %d is %v", records, r)
		}
		return nil
	})
	return records, err
}

func read(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOpen_truncatedLog(t *testing.T) {
	dir, ends := filled(t, 5, 10)
	data := read(t, dir)
	// A record is known to be durable by the next one, so only the last record may be lost.
	for length := ends[3]; length <= ends[4]; length++ {
		want := 4
		if length == ends[4] {
			want = 5
		}
		if records, err := replayed(t, data[:length], 10); err != nil || records != want {
			t.Errorf("cut off after %d bytes: %d records, %v, want %d", length, records, err, want)
		}
	}
}

func TestOpen_flippedByte_isReported(t *testing.T) {
	dir, ends := filled(t, 4, 10)
	fresh := read(t, dir)
	j, err := Open(dir) // rewrites it
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		data []byte
		size int64
	}{
		{"a log that grows", fresh, ends[2]},
		{"a log that was written anew", read(t, dir), int64(len(read(t, dir)))},
	} {
		for i := range c.size {
			damaged := bytes.Clone(c.data)
			damaged[i] ^= 0x10
			if records, err := replayed(t, damaged, 10); !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("%s, byte %d flipped: %d records, %v, want ErrDamaged", c.name, i, records, err)
			}
		}
	}
}

func TestRead_damage_isReported(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	appendTo(t, j, record(2, 10))
	if _, err := j.(*log).file.WriteAt([]byte("x"), j.(*log).end-1); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Read(2); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("got %v, want ErrDamaged", err)
	}
}

func TestOpen_foreignFile_isRefused(t *testing.T) {
	if _, err := replayed(t, []byte("a letter to a friend, which is long enough"), 0); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("got %v, want ErrDamaged", err)
	}
	newer := frame{record: record(2, 1)}.encode()
	newer[prefixSize+1] = 'z'
	binary.LittleEndian.PutUint32(newer[8:], checksum(newer))
	if _, err := replayed(t, append(encodeHeader(int64(headerSize+len(newer))), newer...), 0); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("a frame of another version: got %v, want ErrDamaged", err)
	}
}

func TestTrim_rewritesFile(t *testing.T) {
	const size = 64 << 10
	dir, ends := filled(t, 40, size)
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	var drop []uint64
	for revision := uint64(2); revision < 40; revision++ {
		drop = append(drop, revision)
	}
	if err := j.Trim(40, drop); err != nil {
		t.Fatal(err)
	}
	if now := len(read(t, dir)); now > 3*size {
		t.Errorf("the file has %d bytes, had %d", now, ends[39])
	}
	appendTo(t, j, record(42, size))
	for _, revision := range []uint64{40, 41, 42} {
		if r, err := j.Read(revision); err != nil || !bytes.Equal(r.Value, record(revision, size).Value) {
			t.Errorf("read revision %d: %v", revision, err)
		}
	}
}

func TestAppend_diskFails_isReported(t *testing.T) {
	j, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, j, record(2, 10))
	if err := j.(*log).file.Close(); err != nil { // later writes fail
		t.Fatal(err)
	}
	if _, err := j.Append(record(3, 10)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if err := j.Err(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Err: %v", err)
	}
	if _, err := j.Append(record(3, 10)); err == nil {
		t.Error("it accepts records after a failure")
	}
}

func TestAppend_renameNotDurable_isNotAcknowledged(t *testing.T) {
	j, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	appendTo(t, j, record(2, 2*minGarbage))
	wait, err := j.Append(record(3, 10))
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("the disk is gone")
	j.(*log).syncDir = func(string) error { return failure }
	if err := j.Trim(2, []uint64{2}); !errors.Is(err, failure) {
		t.Errorf("a trim that writes the log anew: %v", err)
	}
	if err := wait(); !errors.Is(err, failure) {
		t.Errorf("a record that was on disk in the new file only: %v, want an error", err)
	}
}
