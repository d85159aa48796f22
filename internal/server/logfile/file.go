// Package logfile writes log files that are rotated by size, and buffers lines that must not wait for a disk. Lines
// that cannot be written are counted, and reported without flooding the log.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/await"
)

// File is an append-only file. A new file is readable by its owner only; an existing file keeps its mode; rotated
// files inherit it. It may be used concurrently.
type File struct {
	path     string
	rotation config.RotationOptions
	write    func(*os.File, []byte) (int, error) // for tests

	mu   sync.Mutex
	file *os.File // nil after Close
	mode fs.FileMode
	size int64
	// limit is the size at which the file is rotated; 0 or less means no rotation.
	limit int64

	rotated chan struct{}
	closing chan struct{}
	tidying sync.WaitGroup
}

// Open opens the file for appending. It creates the file and its directory if they are missing.
func Open(path string, rotation config.RotationOptions) (*File, error) {
	f := &File{
		path:     path,
		rotation: withDefaults(rotation),
		write:    (*os.File).Write,
		mode:     0o600,
		rotated:  make(chan struct{}, 1),
		closing:  make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := f.open(); err != nil {
		return nil, err
	}
	f.tidying.Go(f.tidyWhenRotated)
	await.Notify(f.rotated) // rotated files of an earlier run may have expired
	return f, nil
}

func withDefaults(o config.RotationOptions) config.RotationOptions {
	if o.MaxSize == 0 {
		o.MaxSize = 100 << 20
	}
	if o.MaxBackups == 0 {
		o.MaxBackups = 100
	}
	if o.MaxAge == 0 {
		o.MaxAge = 366 * 24 * time.Hour
	}
	return o
}

// open opens the file at the path. The caller holds mu.
func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, f.mode)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size, f.limit = file, info.Size(), 0
	if info.Mode().IsRegular() {
		f.mode, f.limit = info.Mode().Perm(), f.rotation.MaxSize
	}
	return nil
}

// Write appends whole lines. If it fails, it removes a partially written part of them from the file.
func (f *File) Write(lines []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return 0, fmt.Errorf("write %s: %w", f.path, fs.ErrClosed)
	}
	if f.limit > 0 && f.size > 0 && f.size+int64(len(lines)) > f.limit {
		f.rotate()
	}
	n, err := f.write(f.file, lines)
	if err != nil && n > 0 {
		n -= f.takeBack(n)
	}
	f.size += int64(n)
	return n, err
}

// takeBack truncates the last n bytes of the file, and returns how many were removed.
func (f *File) takeBack(n int) int {
	info, err := f.file.Stat()
	if err != nil || !info.Mode().IsRegular() || f.file.Truncate(info.Size()-int64(n)) != nil {
		return 0
	}
	return n
}

// rotate renames the file and begins a new one. If that fails, the file keeps growing, and rotation is tried again
// when it has grown by MaxSize: keeping lines is more important than the limit.
func (f *File) rotate() {
	backup, err := f.freeName(time.Now())
	if err == nil {
		if err = os.Rename(f.path, backup); errors.Is(err, fs.ErrNotExist) {
			err = nil // another process has removed or renamed it
		}
	}
	if err == nil {
		old := f.file
		if err = f.open(); err == nil {
			err = old.Close()
			await.Notify(f.rotated)
		}
	}
	if err != nil {
		f.limit = f.size + f.rotation.MaxSize
		klog.Background().Error(err, "Failed to rotate a log file, which keeps growing", "file", f.path)
	}
}

// Close closes the file. It waits until rotated files have been tidied up, but aborts a compression, which the next
// Open starts again.
func (f *File) Close() error {
	f.mu.Lock()
	file := f.file
	f.file = nil
	f.mu.Unlock()
	if file == nil {
		return nil
	}
	close(f.closing)
	f.tidying.Wait()
	return file.Close()
}
