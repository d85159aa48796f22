//go:build unix && !linux

package main

import "syscall"

// inGroup has a process be the first of a group. It outlives this program if that is
// killed: only Linux can have it end then.
func inGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
