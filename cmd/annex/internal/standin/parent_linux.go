package standin

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

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
