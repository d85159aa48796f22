package stream

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// leftBehind is the default time that Run waits for child processes that hold the command's outputs.
const leftBehind = 5 * time.Second

// Run runs a command with the client's streams as its own, and returns when the command has ended, whether or not its
// input has. A function of Exec may be
//
//	return s.Run(exec.CommandContext(ctx, r.Options.Command[0], r.Options.Command[1:]...))
//
// Use the function's context for cmd, so that the command is killed when the session ends. The streams of cmd must be
// nil. Run waits up to cmd.WaitDelay, or five seconds if it is zero, for processes that the command leaves behind
// with its outputs open; it does not kill them, unless cmd.Cancel does. A client with a TTY gets the output of plain
// pipes: a pseudo-terminal is up to the function.
//
// Run returns the error of the command. The client gets the command's exit code, or 128 plus the number of the signal
// that killed it; a command that cannot be started is an internal error.
func (s Streams) Run(cmd *exec.Cmd) error {
	if cmd.Stdin != nil || cmd.Stdout != nil || cmd.Stderr != nil {
		return errors.New("run a command: its streams must not be set")
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = leftBehind
	}
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	stdin, err := cmd.StdinPipe() // as Cmd.Stdin, the input would have to end before Wait returns
	if err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	go func() { // until the session ends
		_, _ = io.Copy(stdin, s.Stdin) // input that the command does not read may be lost
		_ = stdin.Close()
	}()
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("run a command: %w", err)
	}
	return nil
}
