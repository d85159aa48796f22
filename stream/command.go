package stream

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/tools/remotecommand"

	"github.com/annexapi/annex"
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

// serveCommand connects the client of a request with a command. mistake is that of its options, if there is one.
func serveCommand[T, O any](
	r *annex.ConnectRequest[T, O],
	wanted streams.Wanted,
	mistake error,
	limits limits,
	run streams.Run,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		streams.ServeCommand(w, req, r.Responder.Error, wanted, mistake, limits.effective(), run)
	})
}

// inProcess is a command that a function of the user's runs.
func inProcess(tty bool, run func(ctx context.Context, s Streams) error) streams.Run {
	return func(ctx context.Context, c streams.Command) error {
		return run(ctx, Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, TTY: tty, Resize: c.Resize})
	}
}
