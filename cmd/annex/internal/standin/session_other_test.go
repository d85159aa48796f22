//go:build !linux

package standin

import "syscall"

func newSession() *syscall.SysProcAttr { return nil }
