package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// child makes the kernel kill a process if this program is killed.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// killSession kills all processes of a session, given its first process: a shell on a terminal creates a group for
// each command.
func killSession(pid int) {
	killGroup(pid)
	for again := true; again; { // a process that is about to fork may be faster
		again = false
		files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			// Behind the name, which may contain any character, are state, parent, group and session.
			fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
			if len(fields) < 4 || string(fields[3]) != fmt.Sprint(pid) || string(fields[0]) == "Z" {
				continue
			}
			if n, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				again = syscall.Kill(n, syscall.SIGKILL) == nil || again
			}
		}
	}
}
