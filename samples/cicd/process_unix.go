//go:build unix && !linux

package main

import "syscall"

// child says nothing of a process: only Linux can have it end if this program is killed.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// killSession ends the group of the first process of a session. The others get a SIGHUP when
// their terminal is closed.
func killSession(pid int) { killGroup(pid) }
