//go:build unix && !linux

package main

import "syscall"

// child says nothing of a process: only Linux can have it end if this program is killed.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// killMarked does nothing: only Linux tells the environments of processes. Those that leave their
// group, or whose controller is killed, live on.
func killMarked(string) {}
