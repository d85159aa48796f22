//go:build unix && !linux

package main

import "syscall"

// child sets nothing: only Linux can kill a process when its parent dies.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// killMarked does nothing: only Linux exposes the environments of processes. Processes that leave their group, or
// whose controller is killed, live on.
func killMarked(string) {}
