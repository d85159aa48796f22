// Package filelock lets one process at a time change files that several use.
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

// patience is how long a process waits for others, whose changes take milliseconds.
const patience = 10 * time.Second

// Lock waits until no other process holds the lock file at path, which is made if missing, for
// ten seconds at most, and holds it until it is closed. The process's end releases it as well.
// An error that is no *fs.PathError says that others, which are named by what they do, do not
// let go.
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
