//go:build !unix && !windows

package filelock

import (
	"errors"
	"io/fs"
	"os"
)

// open fails: this platform has no locks.
func open(path string) (*os.File, error) {
	return nil, &fs.PathError{Op: "lock", Path: path, Err: errors.ErrUnsupported}
}
