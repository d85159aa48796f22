package standin

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// isStranger reports whether a parent cannot be the process that started this one, because it is in another session. The
// process that did has then ended before this one looked: the start of a program of this size takes a tenth of a second.
// A program that leads a session of its own, or whose parent is outside of its namespace, gives no evidence.
func isStranger(parent int) bool {
	own, err := unix.Getsid(0)
	if err != nil || own == os.Getpid() || parent == 0 {
		return false
	}
	session, err := unix.Getsid(parent)
	return err == nil && session != own
}

// waitForEnd waits until a process or the context ends. It returns false if the system cannot wait for the process.
func waitForEnd(ctx context.Context, pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if os.Getppid() != pid {
		return true // the process had ended, and its number may be another's
	}
	for ctx.Err() == nil {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if ready > 0 {
			return true
		}
		if err != nil && err != unix.EINTR {
			return false
		}
	}
	return true
}
