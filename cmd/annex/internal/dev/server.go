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

// killAfter bounds a graceful stop of the server. It is longer than the default time that a shutdown waits for
// requests.
const killAfter = 15 * time.Second

// server is a running program.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // set before exited is closed
}

// start starts a program outside the terminal's foreground process group: an interrupt from the keyboard goes to
// annex, which stops the server by a signal of its own.
func start(binary, dir string, args []string, stdout, stderr io.Writer) (*server, error) {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	cmd.SysProcAttr = apart()
	// Do not wait for a child of the server that keeps its output open.
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

// result returns how the server ended. It may be called after exited is closed.
func (s *server) result() string {
	if s.err == nil {
		return "exit status 0"
	}
	return s.err.Error()
}

// stop stops the server gracefully, or kills it after killAfter, and returns when it has ended. A server that has
// already ended is not an error.
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
	return fmt.Errorf("the server did not end within %s, and was killed", killAfter)
}
