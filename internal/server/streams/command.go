package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	clientremotecommand "k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/outcome"
)

// RequestedStreams are the streams that a client requests.
type RequestedStreams struct{ Stdin, Stdout, Stderr, TTY bool }

// Command is the client's side of one command. All fields are set: an input that was not requested is at its end, and
// an output that was not requested is discarded.
type Command struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize receives the newest size of the terminal. It is closed when no more sizes follow.
	Resize <-chan clientremotecommand.TerminalSize
}

// Run is a command. It ends when its context does.
type Run func(ctx context.Context, command Command) error

// Refuse answers a request that was not upgraded.
type Refuse func(err error)

// ServeCommand connects the client of a request with a command. Errors of the request are passed to refuse, errors of
// the command are sent over the error stream. mistake is an error in the request's options, or nil.
func ServeCommand(w http.ResponseWriter, r *http.Request, refuse Refuse, wanted RequestedStreams, mistake error, limits Limits, run Run) {
	if wanted.TTY {
		wanted.Stderr = false // a terminal has one output
	}
	if !wanted.Stdin && !wanted.Stdout && !wanted.Stderr {
		mistake = apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
	}
	if mistake != nil && httpstream.IsUpgradeRequest(r) { // for other requests, the missing upgrade is the mistake
		refused(w, r, refuse, mistake)
		return
	}
	s := newSession(r.Context(), limits)
	defer s.end()
	streams, err := open(s, takeover{w, s}, r, wanted)
	if err != nil {
		s.notOpened(w, r, refuse, err)
		return
	}
	err, panicked := guarded(s.ctx, func() error { return run(s.ctx, streams.command) })
	result := s.result(err)
	status := statusOf(s, err)
	if status.Reason == remotecommand.NonZeroExitCodeReason && result == outcome.Failed {
		result = outcome.ExitCode
	}
	if panicked {
		result = outcome.Panicked
	}
	outcome.Set(r.Context(), result)
	streams.finish(status)
}

// commandStreams are the streams of a session. finish sends the final status to the client and waits a moment for the client
// to close the connection.
type commandStreams struct {
	command Command
	finish  func(status metav1.Status)
}

func open(s *session, w http.ResponseWriter, r *http.Request, wanted RequestedStreams) (*commandStreams, error) {
	switch {
	case wsstream.IsWebSocketRequest(r):
		return openWebSocket(s, w, r, wanted)
	case isSPDY(r):
		return openSPDY(s, w, r, wanted)
	}
	return nil, notServed(r)
}

// notServed returns the error for a request without an upgrade, or with an unknown one.
func notServed(r *http.Request) error {
	if !httpstream.IsUpgradeRequest(r) {
		return &refusal{err: apierrors.NewBadRequest("Upgrade request required")}
	}
	return &refusal{
		err: apierrors.NewBadRequest(
			fmt.Sprintf("unable to upgrade to %q: use websocket or SPDY/3.1", r.Header.Get(httpstream.HeaderUpgrade)),
		),
	}
}

// refusal is an error response before the upgrade.
type refusal struct {
	err     error
	offered []string // protocols
}

func (r *refusal) Error() string { return r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

func refused(w http.ResponseWriter, r *http.Request, refuse Refuse, err error) {
	outcome.Set(r.Context(), outcome.Refused)
	var refusal *refusal
	if errors.As(err, &refusal) {
		err = refusal.err
		for _, protocol := range refusal.offered {
			w.Header().Add(httpstream.HeaderAcceptedProtocolVersions, protocol)
		}
	}
	refuse(err)
}

// notOpened answers a request for which no session was opened, unless the request has already been upgraded or
// answered.
func (s *session) notOpened(w http.ResponseWriter, r *http.Request, refuse Refuse, err error) {
	var refusal *refusal
	if errors.As(err, &refusal) {
		refused(w, r, refuse, err)
		return
	}
	outcome.Set(r.Context(), s.result(err))
	klog.FromContext(r.Context()).V(2).Info("A session was not opened", "err", err)
}

// negotiate returns the first of the client's protocols that is offered. asked may be empty, for which offered may
// contain a protocol without a name.
func negotiate(asked, offered []string) (string, error) {
	if len(asked) == 0 {
		asked = []string{""}
	}
	for _, protocol := range asked {
		if slices.Contains(offered, protocol) {
			return protocol, nil
		}
	}
	named := slices.DeleteFunc(slices.Clone(offered), func(p string) bool { return p == "" })
	text := fmt.Sprintf("unable to upgrade: the client supports %s, the server %s", strings.Join(asked, ", "), strings.Join(named, ", "))
	if asked[0] == "" {
		text = "unable to upgrade: no protocol: use one of " + strings.Join(named, ", ")
	}
	return "", &refusal{apierrors.NewBadRequest(text), named}
}

// listed returns the values of a header, including comma-separated ones.
func listed(values []string) []string {
	var all []string
	for _, line := range values {
		for value := range strings.SplitSeq(line, ",") {
			if value = strings.TrimSpace(value); value != "" {
				all = append(all, value)
			}
		}
	}
	return all
}

// guarded calls a user's function. A panic in it ends only its own session.
func guarded(ctx context.Context, run func() error) (err error, panicked bool) {
	defer func() {
		if reason := recover(); reason != nil {
			klog.FromContext(ctx).Error(nil, "A session panicked", "panic", reason, "stack", string(debug.Stack()))
			err, panicked = apierrors.NewInternalError(errors.New("the session caused a panic in the server; see the server's log")), true
		}
	}()
	return run(), false
}

// statusOf returns the final status of a command, in kubelet's words.
func statusOf(s *session, err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	if reason := s.reason(); reason != nil {
		err = reason // the reason takes precedence over the result of the canceled command
	}
	if code, ok := exitCode(err); ok {
		if code == 0 {
			return metav1.Status{Status: metav1.StatusSuccess}
		}
		return metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", err),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
		}
	}
	status, ok := apierr.Status(err)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	return status.(apierrors.APIStatus).Status()
}

// exitCode returns the exit code of a local or remote process. A process that was killed by a signal has the code
// that shells assign.
func exitCode(err error) (int, bool) {
	var process *exec.ExitError
	if errors.As(err, &process) {
		if w, ok := process.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return 128 + int(w.Signal()), true
		}
	}
	var code interface{ ExitCode() int }
	if errors.As(err, &code) {
		return code.ExitCode(), true
	}
	var remote interface{ ExitStatus() int } // from client-go
	if errors.As(err, &remote) {
		return remote.ExitStatus(), true
	}
	return 0, false
}

// sizes keeps the newest size of a terminal until it is read.
type sizes struct {
	newest chan clientremotecommand.TerminalSize
}

func newSizes() *sizes { return &sizes{make(chan clientremotecommand.TerminalSize, 1)} }

// set is called by one goroutine at a time, and not after the channel was closed.
func (s *sizes) set(size clientremotecommand.TerminalSize) {
	for {
		select {
		case s.newest <- size:
			return
		default:
		}
		select {
		case <-s.newest:
		default:
		}
	}
}

// follow reads sizes from a stream until its end.
func (s *sizes) follow(from io.Reader) {
	defer close(s.newest)
	for decoder := json.NewDecoder(from); ; {
		var size clientremotecommand.TerminalSize
		if err := decoder.Decode(&size); err != nil {
			return
		}
		s.set(size)
	}
}

// none returns the sizes of a session without a terminal.
func none() <-chan clientremotecommand.TerminalSize {
	closed := make(chan clientremotecommand.TerminalSize)
	close(closed)
	return closed
}

// empty is the stdin of a client that sends none.
type empty struct{}

func (empty) Read([]byte) (int, error) { return 0, io.EOF }

// writerFunc is a function that implements io.Writer.
type writerFunc func(p []byte) (int, error)

// Write writes in chunks, so that streams take turns and messages stay small.
func (w writerFunc) Write(p []byte) (int, error) {
	written := 0
	for {
		piece := p[written:min(len(p), written+chunk)]
		n, err := w(piece)
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}
