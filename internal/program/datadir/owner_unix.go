//go:build unix

package datadir

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

func isOwner(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// isMountPoint reports whether a directory is on another file system than the one above it, or the root of all.
func isMountPoint(dir string, info fs.FileInfo) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	if real, err = filepath.Abs(real); err != nil {
		return false
	}
	parent, err := os.Stat(filepath.Dir(real))
	if err != nil {
		return false
	}
	above, ok := parent.Sys().(*syscall.Stat_t)
	stat, also := info.Sys().(*syscall.Stat_t)
	return ok && also && (stat.Dev != above.Dev || os.SameFile(info, parent))
}
