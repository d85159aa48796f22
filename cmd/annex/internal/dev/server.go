package dev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// killAfter is how long a server may take to end in order: longer than a shutdown
// waits for requests by default.
const killAfter = 15 * time.Second

// server is the program that runs.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // set before exited is closed
}

// start runs a program. It belongs to no terminal's foreground: an interrupt from the
// keyboard is for annex, which ends the server by a signal of its own.
func start(binary, dir string, args []string, stdout, stderr io.Writer) (*server, error) {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	cmd.SysProcAttr = apart()
	// A child of the server that keeps its output open is not waited for.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	s := &server{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(s.exited)
		s.err = cmd.Wait()
	}()
	return s, nil
}

// result says how the server ended, after exited is closed.
func (s *server) result() string {
	if s.err == nil {
		return "exit status 0"
	}
	return s.err.Error()
}

// stop ends the server in order, or at once if it takes too long, and returns when
// it has ended. A server that has ended by itself is none to complain about.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the server: %w", err)
	}
	timer := time.NewTimer(killAfter)
	defer timer.Stop()
	select {
	case <-s.exited:
		return s.err
	case <-timer.C:
	}
	_ = s.cmd.Process.Kill() // it may have ended just now
	<-s.exited
	return fmt.Errorf("it did not end within %s, and was killed", killAfter)
}
