package stream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"k8s.io/client-go/tools/remotecommand"

	"github.com/annexapi/annex/internal/server/streams"
)

// Streams are the client's side of a command. No stream is nil: an input that the client did not ask for is at its
// end, and an output that it did not ask for is discarded. Different streams may be used concurrently, and none after
// the function has returned.
type Streams struct {
	// Stdin returns io.EOF when the client has closed it, which WebSocket protocols before v5 cannot express. If the
	// session ends first, reads return the reason as their error; if the client is gone, that error wraps
	// io.ErrUnexpectedEOF. A read may block until then. As Cmd.Stdin of os/exec, Stdin would therefore keep a command
	// from ending before its input does; see Run.
	Stdin io.Reader
	// Stdout and Stderr have sent the data when Write returns, and block while the client does not read. With a TTY
	// all output goes to Stdout.
	Stdout, Stderr io.Writer
	// TTY reports whether the client is a terminal and asked for one.
	TTY bool
	// Resize delivers the newest size of the client's terminal. It is closed when no more sizes can come: at the end
	// of the session, and at once without a TTY.
	Resize <-chan Size
}

// Size is the size of a terminal, in characters.
type Size = remotecommand.TerminalSize

// ExitError reports that a command ended with an exit code. The client gets the code; kubectl, for example, exits
// with it. The code 0 is success. An error of os/exec has an exit code, which the client gets as well; a process that
// was killed by a signal has the code 128 plus the signal's number.
type ExitError struct{ Code int }

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// ExitCode returns the code.
func (e ExitError) ExitCode() int { return e.Code }

// commandOptions are those of Exec or Attach.
type commandOptions interface {
	// complete chooses the container, and leaves out Stderr if there is a TTY.
	complete(choose func(asked string) (string, error)) error
	// mistake returns an error if no session can begin with the options.
	mistake() error
	wanted() streams.RequestedStreams
	// query asks an agent for the same. It has all options: the agent's defaults may differ.
	query() url.Values
}

// commands are the common settings of Exec and Attach. R is the request that functions get.
type commands[T, R any] struct {
	containers containers[T]
	check      func(ctx context.Context, r *R) error
	limits     limits
}

// serve returns the handler of a session. request and options are parts of r.
func (c *commands[T, R]) serve(
	ctx context.Context,
	refuse streams.Refuse,
	r *R,
	request *Request[T],
	options commandOptions,
	command func(ctx context.Context, r *R) (streams.Run, error),
) (http.Handler, error) {
	err := options.complete(func(asked string) (string, error) { return c.containers.choose(request, asked) })
	if err == nil && c.check != nil {
		err = c.check(ctx, r)
	}
	if err != nil {
		return nil, checked(ctx, err)
	}
	run, err := command(ctx, r)
	if err != nil {
		return nil, checked(ctx, err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		streams.ServeCommand(w, req, refuse, options.wanted(), options.mistake(), c.limits.effective(), run)
	}), nil
}

// commandAt returns a function that starts sessions at an agent.
func commandAt[R any](
	locate func(ctx context.Context, r *R) (*Backend, error),
	options func(*R) commandOptions,
) func(ctx context.Context, r *R) (streams.Run, error) {
	return func(ctx context.Context, r *R) (streams.Run, error) {
		backend, err := locate(ctx, r)
		if err != nil {
			return nil, err
		}
		agent, err := backend.agent(options(r).query())
		if err != nil {
			return nil, err
		}
		return streams.Remote(agent, options(r).wanted()), nil
	}
}

// inProcess returns a command that runs a function of the user's.
func inProcess(tty bool, run func(ctx context.Context, s Streams) error) streams.Run {
	return func(ctx context.Context, c streams.Command) error {
		return run(ctx, Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, TTY: tty, Resize: c.Resize})
	}
}
