package standin

import "syscall"

// newSession lets a process lead a session.
func newSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
