//go:build unix && !linux

package main

import "syscall"

// child sets nothing: only Linux can kill a process when its parent dies.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// killSession kills the group of the first process of a session. The other processes get SIGHUP when their terminal
// is closed.
func killSession(pid int) { killGroup(pid) }
