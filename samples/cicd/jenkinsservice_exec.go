package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"github.com/creack/pty"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex/stream"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

type jenkinsServiceExec = stream.ExecRequest[autobusiv1alpha.JenkinsService]

// checkExecJenkinsService refuses invalid commands before the connection is upgraded.
func (s *instances) checkExecJenkinsService(_ context.Context, r *jenkinsServiceExec) error {
	_, _, _, err := s.place(r)
	return err
}

// place returns the instance for a command, a channel that is closed when the instance ends, and its environment,
// which must not be changed.
func (s *instances) place(r *jenkinsServiceExec) (i *instance, ended <-chan struct{}, env []string, err error) {
	i, err = s.find(&r.Request, r.Options.Container)
	if err != nil {
		return nil, nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.process == nil || i.stopping {
		return nil, nil, nil, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf("instance %d does not run", i.number))
	}
	return i, i.ended, i.env, nil
}

// execJenkinsService runs a command beside an instance, in its folder and with its environment. The command ends with
// the client and with the instance, and all processes that it has started end with it.
func (s *instances) execJenkinsService(ctx context.Context, r *jenkinsServiceExec, client stream.Streams) error {
	i, ended, env, err := s.place(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	cmd := exec.Command(r.Options.Command[0], r.Options.Command[1:]...)
	cmd.Dir, cmd.Env = i.dir, slices.Clone(env)
	if client.TTY {
		return runInTerminal(ctx, cmd, client)
	}
	return runInPipes(ctx, cmd, client)
}

// notStarted reports, as a shell does, that the command does not exist.
func notStarted(err error, to io.Writer) error {
	code := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = 127
	}
	fmt.Fprintln(to, err) // best effort: the code reports it, too
	return stream.ExitError{Code: code}
}

func runInPipes(ctx context.Context, cmd *exec.Cmd, client stream.Streams) error {
	cmd.SysProcAttr = child()
	cmd.SysProcAttr.Setpgid = true
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	copied, err := startCopying(cmd, client.Stdout, client.Stderr)
	if err != nil {
		_ = stdin.Close() // nothing was written
		return notStarted(err, client.Stderr)
	}
	go func() {
		_, _ = io.Copy(stdin, client.Stdin) // ends with the session or the command
		_ = stdin.Close()
	}()
	defer context.AfterFunc(ctx, func() { killGroup(cmd.Process.Pid) })()
	err = cmd.Wait()
	killGroup(cmd.Process.Pid)
	copied()
	return err
}

func runInTerminal(ctx context.Context, cmd *exec.Cmd, client stream.Streams) error {
	cmd.Env = append(cmd.Env, "TERM=xterm")
	attributes := child()
	attributes.Setsid, attributes.Setctty = true, true
	terminal, err := pty.StartWithAttrs(cmd, nil, attributes)
	if err != nil {
		return notStarted(err, client.Stdout)
	}
	defer terminal.Close()
	resized := make(chan struct{})
	over, end := context.WithCancel(ctx)
	defer func() { end(); <-resized }() // after the close, the descriptor's number may belong to another file
	go func() {
		defer close(resized)
		for {
			select {
			case size, ok := <-client.Resize:
				if !ok {
					return
				}
				_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width}) // the next may succeed
			case <-over.Done():
				return
			}
		}
	}()
	go func() {
		if _, err := io.Copy(terminal, client.Stdin); err == nil {
			_, _ = terminal.Write([]byte{4}) // end of input on a terminal
		}
	}()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(client.Stdout, terminal) // ends with an error when no process has the terminal open
	}()
	defer context.AfterFunc(ctx, func() { killSession(cmd.Process.Pid) })()
	err = cmd.Wait()
	killSession(cmd.Process.Pid)
	select {
	case <-copied:
	case <-ctx.Done():
		end()
		<-resized
		terminal.Close()
		<-copied
	}
	return err
}
