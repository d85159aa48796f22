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
	// stopGrace is how long a script may take to end when it is told to. A run that is stopped has
	// ended within a second.
	stopGrace = 500 * time.Millisecond
	// copyGrace is how long the log may take to be complete when all processes have ended: one that has
	// got away may hold it open.
	copyGrace = time.Second
)

// script is a shell script, and where it runs.
type script struct {
	text, dir string
	env       []string
	// mark is a variable of env that all processes of the run have, by which those are found that leave
	// their group.
	mark string
	log  io.Writer
}

// run runs the script until it ends by itself or ctx does, and everything that it has started
// with it. The exit code is 128 and the signal if a signal ended the shell. An error says that it
// could not be started.
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
		_, _ = io.Copy(s.log, out) // the log says itself what it lacks
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the state says how it ended
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

// end tells a process and its group to end, and kills them if that takes too long.
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

// killGroup ends all that is left in the group of a process.
func killGroup(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // there may be none
}
