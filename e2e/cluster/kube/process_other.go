//go:build unix && !linux

package kube

import "syscall"

// attributes give a process a group of its own. Outside of Linux, the process survives when the program that started
// it is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
