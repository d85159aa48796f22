// Package filelock serializes the changes of files that several processes share.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// patience is the time that a process waits for others, whose changes take milliseconds.
const patience = 10 * time.Second

// ErrHeld reports that another process, or another part of this one, holds a lock.
var ErrHeld = errors.New("the lock is held")

// Lock takes the lock file at path, and creates the file if it is missing. It waits at most ten seconds for other
// processes to release it. The caller holds the lock until it closes the result; the end of the process releases it
// as well. An error that is no *fs.PathError means that another process holds the lock; others names these processes
// in the error.
func Lock(ctx context.Context, path, others string) (io.Closer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		lock, err := Try(path)
		if err == nil {
			return lock, nil
		}
		if errors.As(err, new(*fs.PathError)) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is locked by another process that %s: %w", path, others, ctx.Err())
		case <-tick.C:
		}
	}
}

// Try locks the file at path, and creates the file if it is missing. The lock is held until the returned closer is
// closed or the process ends. The error is a *fs.PathError if the file cannot be opened or locked. It matches ErrHeld if
// another process holds the lock, or this process holds it through the same path. It is the same kind of lock as
// Pebble's, so it excludes builds of the server that locked through Pebble's file system.
func Try(path string) (io.Closer, error) {
	held.Lock()
	defer held.Unlock()
	// The lock of a process does not exclude the process itself, and closing a second descriptor of the file
	// would release the lock.
	if held.paths[path] {
		return nil, ErrHeld
	}
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	held.paths[path] = true
	return &lock{path, file}, nil
}

var held = struct {
	sync.Mutex
	paths map[string]bool
}{paths: map[string]bool{}}

type lock struct {
	path string
	file *os.File
}

// Close releases the lock; the file stays.
func (l *lock) Close() error {
	held.Lock()
	defer held.Unlock()
	err := l.file.Close()
	if err == nil {
		delete(held.paths, l.path)
	}
	return err
}
