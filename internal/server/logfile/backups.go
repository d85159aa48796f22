package logfile

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// backupTime is the format of the time in the name of a rotated file, in UTC. The names equal those of
// kube-apiserver, which log collectors know.
const backupTime = "2006-01-02T15-04-05.000"

const compressed = ".gz"

// backup is a rotated file.
type backup struct {
	path string
	at   time.Time
}

// parts returns the prefix and suffix of the names of rotated files.
func (f *File) parts() (prefix, suffix string) {
	name := filepath.Base(f.path)
	suffix = filepath.Ext(name)
	return strings.TrimSuffix(name, suffix) + "-", suffix
}

// freeName returns the name for a file that is rotated now. If the name is taken, the time in it is later by
// milliseconds.
func (f *File) freeName(now time.Time) (string, error) {
	prefix, suffix := f.parts()
	for ; ; now = now.Add(time.Millisecond) {
		path := filepath.Join(filepath.Dir(f.path), prefix+now.UTC().Format(backupTime)+suffix)
		taken := false
		for _, p := range []string{path, path + compressed} {
			switch _, err := os.Lstat(p); {
			case err == nil:
				taken = true
			case !errors.Is(err, fs.ErrNotExist):
				return "", err
			}
		}
		if !taken {
			return path, nil
		}
	}
}

// backups returns the rotated files, the newest first.
func (f *File) backups() ([]backup, error) {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	prefix, suffix := f.parts()
	var all []backup
	for _, entry := range entries {
		text, ok := strings.CutPrefix(entry.Name(), prefix)
		if !ok {
			continue
		}
		text, ok = strings.CutSuffix(strings.TrimSuffix(text, compressed), suffix)
		at, err := time.Parse(backupTime, text)
		if !ok || err != nil || !entry.Type().IsRegular() {
			continue
		}
		all = append(all, backup{filepath.Join(filepath.Dir(f.path), entry.Name()), at})
	}
	slices.SortFunc(all, func(a, b backup) int { return b.at.Compare(a.at) })
	return all, nil
}

// tidyWhenRotated calls tidy after each rotation until the file is closed.
func (f *File) tidyWhenRotated() {
	for {
		select {
		case <-f.closing:
			return
		case <-f.rotated:
		}
		if err := f.tidy(); err != nil && !errors.Is(err, fs.ErrClosed) {
			klog.Background().Error(err, "Failed to remove or compress rotated files", "file", f.path)
		}
	}
}

// tidy removes the excess and the expired rotated files, and compresses the others.
func (f *File) tidy() error {
	all, err := f.backups()
	errs := []error{err}
	for i, b := range all {
		switch o := f.rotation; {
		case o.MaxBackups > 0 && i >= o.MaxBackups || o.MaxAge > 0 && time.Since(b.at) > o.MaxAge:
			errs = append(errs, os.Remove(b.path))
		case o.Compress && !strings.HasSuffix(b.path, compressed):
			errs = append(errs, f.compress(b.path))
		}
	}
	return errors.Join(errs...)
}

// compress replaces a file by a compressed one with the same mode. It returns fs.ErrClosed when the log file is
// closed.
func (f *File) compress(path string) (err error) {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	unfinished := path + compressed + ".tmp"
	to, err := os.OpenFile(unfinished, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(unfinished) // best effort: the next compression overwrites it
		}
	}()
	z := gzip.NewWriter(to)
	_, err = io.Copy(z, closableReader{from, f.closing})
	if err = errors.Join(err, z.Close(), to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := os.Rename(unfinished, path+compressed); err != nil {
		return err
	}
	return os.Remove(path)
}

// closableReader reads until the log file is closed.
type closableReader struct {
	io.Reader
	closing <-chan struct{}
}

func (r closableReader) Read(p []byte) (int, error) {
	select {
	case <-r.closing:
		return 0, fs.ErrClosed
	default:
		return r.Reader.Read(p)
	}
}
