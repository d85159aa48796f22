//go:build unix

package upstream

import "syscall"

// maxConnections is how many connections a listener may have open: a third of the
// files that the process may open, so that two listeners leave enough for the
// storage. The storage turns read-only when it cannot open a file.
func maxConnections() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	return int(min(files.Cur, 1<<30) / 3)
}
