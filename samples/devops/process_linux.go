package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// child has a process end if this program is killed.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// killMarked ends all processes that have a variable in their environment, which children inherit:
// those of a run whose controller was killed, and those that have left their group.
func killMarked(mark string) {
	for again := true; again; { // one that is about to start another may be faster
		again = false
		files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
		for _, file := range files {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil || pid == os.Getpid() {
				continue
			}
			process, err := os.FindProcess(pid) // a handle, which another process of the number does not get
			if err != nil {
				continue
			}
			if marked(file, mark) && process.Signal(syscall.SIGKILL) == nil {
				again = true
			}
			_ = process.Release() // it was not waited for
		}
	}
}

// marked says whether a process has the variable. One that has ended has none.
func marked(file, mark string) bool {
	environ, err := os.ReadFile(file)
	if err != nil {
		return false // it has ended, or is another user's
	}
	return bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+mark+"\x00"))
}
