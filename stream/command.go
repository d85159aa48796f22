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

// Streams are the client's side of a command. None of them is nil: what the client does not want is
// at its end or thrown away. They may be used concurrently with each other, and not after the
// function has returned.
type Streams struct {
	// Stdin is at its end (io.EOF) when the client has closed it, which clients of the WebSocket
	// protocols before v5 cannot. When the session ends first, the error is the reason; of a client
	// that has gone it wraps io.ErrUnexpectedEOF. Reading may block until then: as Cmd.Stdin of
	// os/exec it would keep a command from ending before its input does, see Run.
	Stdin io.Reader
	// Stdout and Stderr send what is written before Write returns, and block while the client does
	// not read. With a TTY all is Stdout.
	Stdout, Stderr io.Writer
	// TTY says that the client is a terminal and wants one.
	TTY bool
	// Resize has the newest size of the client's terminal, and is closed when there will be no
	// more: at the end of the session, and at once without a TTY.
	Resize <-chan Size
}

// Size is that of a terminal, in characters.
type Size = remotecommand.TerminalSize

// ExitError is a command that ended with an exit code. The client gets the code: kubectl, say, exits
// with it. The code 0 is success. Errors of os/exec have codes of their own, which clients get as
// well, and of a process that a signal ended the code is 128 and the signal's number.
type ExitError struct{ Code int }

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// ExitCode is the code.
func (e ExitError) ExitCode() int { return e.Code }

// commandOptions are those of Exec or Attach.
type commandOptions interface {
	// complete chooses the container, and leaves out Stderr if there is a TTY.
	complete(choose func(asked string) (string, error)) error
	// mistake returns an error if no session can begin with the options.
	mistake() error
	wanted() streams.Wanted
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

// inProcess is a command that a function of the user's runs.
func inProcess(tty bool, run func(ctx context.Context, s Streams) error) streams.Run {
	return func(ctx context.Context, c streams.Command) error {
		return run(ctx, Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, TTY: tty, Resize: c.Resize})
	}
}
