// Package filelock serializes the changes of files that several processes share.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// patience is the time that a process waits for others, whose changes take milliseconds.
const patience = 10 * time.Second

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
		lock, err := vfs.Default.Lock(path)
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
