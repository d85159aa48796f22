package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// child has a process end if this program is killed.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// killSession ends all that a process has started which is the first of a session: a shell
// in a terminal makes a group of each command.
func killSession(pid int) {
	killGroup(pid)
	for again := true; again; { // one that is about to start another may be faster
		again = false
		files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			// Behind the name, which may hold anything: state, parent, group, session.
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
