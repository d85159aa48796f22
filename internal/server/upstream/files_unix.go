//go:build unix

package upstream

import "syscall"

// maxConnections returns the number of connections that a listener may have open: a third of the files that the
// process may open, so that two listeners leave enough for the storage. The storage becomes read-only when it cannot
// open a file.
func maxConnections() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	return int(min(files.Cur, 1<<30) / 3)
}
