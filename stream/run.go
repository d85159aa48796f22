package stream

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// leftBehind is how long Run waits for what a command has left behind.
const leftBehind = 5 * time.Second

// Run runs a command with the client's streams as its own, and returns when it has ended, be its
// input at its end or not: a function of Exec may be
//
//	return s.Run(exec.CommandContext(ctx, r.Options.Command[0], r.Options.Command[1:]...))
//
// The context of cmd is the function's, so that the command is killed when the session ends, and
// the streams of cmd are nil. Processes that the command leaves behind with its outputs are waited
// for as long as cmd.WaitDelay says, which is five seconds if it is zero; they are not killed, unless
// cmd.Cancel does it. A client with a TTY gets what the command writes into pipes: a pseudo-terminal
// is up to the function.
//
// The error is that of the command. The client gets its exit code, or 128 and the signal that
// ended it; a command that cannot be started is an internal error.
func (s Streams) Run(cmd *exec.Cmd) error {
	if cmd.Stdin != nil || cmd.Stdout != nil || cmd.Stderr != nil {
		return errors.New("run a command: it has streams of its own")
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = leftBehind
	}
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	stdin, err := cmd.StdinPipe() // with Cmd.Stdin, a command would be waited for until its input ends
	if err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	go func() { // until the session ends
		_, _ = io.Copy(stdin, s.Stdin) // what the command does not read is not missed
		_ = stdin.Close()
	}()
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("run a command: %w", err)
	}
	return nil
}
