package logfile

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func open(t *testing.T, path string, rotation config.RotationOptions) *File {
	t.Helper()
	f, err := Open(path, rotation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func write(t *testing.T, f *File, lines string) {
	t.Helper()
	if n, err := f.Write([]byte(lines)); n != len(lines) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(lines), err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// rotated returns the paths of the rotated files, the oldest first.
func rotated(t *testing.T, path string) []string {
	t.Helper()
	all, err := filepath.Glob(strings.TrimSuffix(path, filepath.Ext(path)) + "-*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFile_rotatesAtMaxSize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "logs", "audit.log")
	f := open(t, path, config.RotationOptions{MaxSize: 10})
	for _, line := range []string{"one\n", "two\n", "three\n", "a line that is longer than a file\n", "four\n"} {
		write(t, f, line)
	}
	var all []string
	for _, p := range append(rotated(t, path), path) {
		all = append(all, read(t, p))
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %o", p, info.Mode().Perm())
		}
	}
	want := "one\ntwo\n|three\n|a line that is longer than a file\n|four\n"
	if got := strings.Join(all, "|"); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	name := filepath.Base(rotated(t, path)[0])
	if _, err := time.Parse("audit-2006-01-02T15-04-05.000.log", name); err != nil {
		t.Error(err)
	}
}

func TestOpen_existingFile_keepsModeAndSize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("before\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	f := open(t, path, config.RotationOptions{MaxSize: 10})
	write(t, f, "after\n")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "after\n" || info.Mode().Perm() != 0o640 {
		t.Errorf("got %q, mode %o", got, info.Mode().Perm())
	}
	if all := rotated(t, path); len(all) != 1 || read(t, all[0]) != "before\n" {
		t.Errorf("rotated: %v", all)
	}
}

func TestTidy_removesByNumberAndAge(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		rotation config.RotationOptions
		want     int
	}{
		{"by number", config.RotationOptions{MaxBackups: 2, MaxAge: -1}, 2},
		{"by age", config.RotationOptions{MaxBackups: -1, MaxAge: 36 * time.Hour}, 2},
		{"neither", config.RotationOptions{MaxBackups: -1, MaxAge: -1}, 4},
		{"the default", config.RotationOptions{}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "audit.log")
			now := time.Now().UTC()
			for _, age := range []time.Duration{time.Hour, 24 * time.Hour, 48 * time.Hour, 400 * 24 * time.Hour} {
				name := "audit-" + now.Add(-age).Format(backupTime) + ".log"
				if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			others := []string{"audit-yesterday.log", "audit-2026-11-22T15-04-05.000.txt", "other-2006-11-22T15-04-05.000.log"}
			for _, name := range others {
				if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := open(t, path, test.rotation)
			testwait.Until(t, "the rotated files are in order", func() bool {
				all, err := f.backups()
				return err == nil && len(all) == test.want
			})
			for _, name := range others {
				read(t, filepath.Join(filepath.Dir(path), name))
			}
		})
	}
}

func TestTidy_compresses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	f := open(t, path, config.RotationOptions{MaxSize: 10, Compress: true})
	write(t, f, "a first line\n")
	write(t, f, "another\n")
	var all []string
	testwait.Until(t, "the rotated file is compressed", func() bool {
		all = rotated(t, path)
		return len(all) == 1 && strings.HasSuffix(all[0], ".log.gz")
	})
	file, err := os.Open(all[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if info, _ := file.Stat(); string(data) != "a first line\n" || err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %q, %v, mode %o", data, err, info.Mode().Perm())
	}
}

func TestWrite_fullDisk_leavesNoPartialLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	f := open(t, path, config.RotationOptions{})
	write(t, f, "one\n")
	f.write = func(file *os.File, lines []byte) (int, error) {
		n, err := file.Write(lines[:len(lines)/2])
		return n, errors.Join(err, syscall.ENOSPC)
	}
	if _, err := f.Write([]byte("a line that does not fit\n")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	f.write = (*os.File).Write
	write(t, f, "two\n")
	if got := read(t, path); got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestRotate_renamedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	f := open(t, path, config.RotationOptions{MaxSize: 10})
	write(t, f, "one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, f, "two\n")
	write(t, f, "three\n")
	if before, after := read(t, path+".1"), read(t, path); before != "one\ntwo\n" || after != "three\n" {
		t.Errorf("got %q and %q", before, after)
	}
}

func TestWrite_closedFile(t *testing.T) {
	t.Parallel()
	f := open(t, filepath.Join(t.TempDir(), "audit.log"), config.RotationOptions{})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("late\n")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestFile_device_isNotRotated(t *testing.T) {
	t.Parallel()
	f := open(t, os.DevNull, config.RotationOptions{MaxSize: 2})
	for range 3 {
		write(t, f, "a line\n")
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
