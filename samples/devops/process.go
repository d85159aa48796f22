package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// stopGrace bounds the time from SIGTERM to SIGKILL. A stopped run has ended within a second.
	stopGrace = 500 * time.Millisecond
	// copyGrace bounds the time to complete the log after all processes have ended: an escaped process may hold it
	// open.
	copyGrace = time.Second
)

// script is a shell script, with its folder and environment.
type script struct {
	text, dir string
	env       []string
	// mark is a variable in env. It identifies all processes of the run, including processes that leave their group.
	mark string
	log  io.Writer
}

// run runs the script until it ends or ctx does, and then kills all processes that it has started. The exit code is
// 128 plus the signal's number if a signal ended the shell. An error means that the script could not be started.
func (s *script) run(ctx context.Context) (exitCode int32, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("pipe for the log: %w", err)
	}
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-e", "-c", s.text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = s.dir, s.env, in, in, child()
	cmd.SysProcAttr.Setpgid = true
	err = cmd.Start()
	if closing := in.Close(); err != nil {
		return 0, errors.Join(fmt.Errorf("start /bin/sh: %w", err), closing)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(s.log, out) // the log itself reports missing output
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the state has the result
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		end(cmd.Process.Pid, s.mark, ended)
		<-ended
	}
	killGroup(cmd.Process.Pid)
	killMarked(s.mark)
	_ = out.SetReadDeadline(time.Now().Add(copyGrace)) // pipes have deadlines
	<-copied
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal()), nil
	}
	return int32(cmd.ProcessState.ExitCode()), nil
}

// end sends SIGTERM to a process and its group, and SIGKILL after stopGrace.
func end(pid int, mark string, ended <-chan struct{}) {
	_ = syscall.Kill(-pid, syscall.SIGTERM) // it may have ended
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		killGroup(pid)
		killMarked(mark)
	}
}

// killGroup kills all processes in the group of a process.
func killGroup(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // there may be none
}
