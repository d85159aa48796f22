package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// child makes the kernel kill a process if this program is killed.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// killMarked kills all processes with a variable in their environment, which children inherit: those of a run whose
// controller was killed, and processes that have left their group.
func killMarked(mark string) {
	for again := true; again; { // a process that is about to fork may be faster
		again = false
		files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
		for _, file := range files {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil || pid == os.Getpid() {
				continue
			}
			process, err := os.FindProcess(pid) // a handle, so that no other process with the same number is killed
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

// marked reports whether the process has the variable. A process that has ended has none.
func marked(file, mark string) bool {
	environ, err := os.ReadFile(file)
	if err != nil {
		return false // it has ended, or belongs to another user
	}
	return bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+mark+"\x00"))
}
