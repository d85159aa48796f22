//go:build unix

package dev

import "syscall"

func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
