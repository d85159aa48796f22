package main

import "syscall"

// inGroup has a process be the first of a group, and end if this program is killed.
func inGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
