package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/remotecommand"
)

// exited is the error of a command that ended with a code.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
func (e exited) ExitCode() int { return int(e) }

// Requests that become no session are answered as any other, and nothing is run.
func TestServeCommand_refusals(t *testing.T) {
	all := RequestedStreams{Stdin: true, Stdout: true, Stderr: true}
	upgrade := func(to string, headers ...string) http.Header {
		h := http.Header{"Connection": {"Upgrade"}, "Upgrade": {to}}
		for i := 0; i < len(headers); i += 2 {
			h.Add(headers[i], headers[i+1])
		}
		return h
	}
	for name, test := range map[string]struct {
		header  http.Header
		wanted  RequestedStreams
		mistake error
		want    string
	}{
		"no upgrade":      {http.Header{}, all, nil, "Upgrade request required"},
		"another upgrade": {upgrade("h2c"), all, nil, `unable to upgrade to "h2c": use websocket or SPDY/3.1`},
		"no streams":      {upgrade("SPDY/3.1"), RequestedStreams{}, nil, "you must specify at least 1 of stdin, stdout, stderr"},
		"a terminal has no stderr": {upgrade("SPDY/3.1"), RequestedStreams{TTY: true, Stderr: true}, nil,
			"you must specify at least 1 of stdin, stdout, stderr"},
		"options that are wrong": {upgrade("SPDY/3.1"), all, apierrors.NewBadRequest("no such container"), "no such container"},
		"options that are wrong, no upgrade": {http.Header{}, all, apierrors.NewBadRequest("no such container"),
			"Upgrade request required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header = test.header
			var refusal error
			ServeCommand(httptest.NewRecorder(), r, func(err error) { refusal = err }, test.wanted, test.mistake, Limits{},
				func(context.Context, Command) error {
					t.Error("the command is run")
					return nil
				})
			if !apierrors.IsBadRequest(refusal) || !strings.Contains(refusal.Error(), test.want) {
				t.Errorf("refused with %v, want %s", refusal, test.want)
			}
		})
	}
}

func TestNegotiate(t *testing.T) {
	offered := []string{"v5", "v4", ""}
	for name, test := range map[string]struct {
		asked, offered []string
		want, refusal  string
	}{
		"the client's first":   {[]string{"v4", "v5"}, offered, "v4", ""},
		"the first that fits":  {[]string{"v9", "v5"}, offered, "v5", ""},
		"no name, which is":    {nil, offered, "", ""},
		"no name, which isn't": {nil, offered[:2], "", "unable to upgrade: no protocol: use one of v5, v4"},
		"none that fits":       {[]string{"v9"}, offered, "", "unable to upgrade: the client supports v9, the server v5, v4"},
	} {
		got, err := negotiate(test.asked, test.offered)
		if got != test.want || (err == nil) != (test.refusal == "") || err != nil && err.Error() != test.refusal {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, test.want, test.refusal)
		}
		var refusal *refusal
		if errors.As(err, &refusal) && !slices.Equal(refusal.offered, []string{"v5", "v4"}) {
			t.Errorf("%s: offered are %q", name, refusal.offered)
		}
	}
}

func TestListed_valuesOfAHeader(t *testing.T) {
	if got, want := listed([]string{"a, b", " c ,,", ""}), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
}

// The status that a client gets for the end of a command has the wording of kubelet.
func TestStatusOf(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		status string
		reason metav1.StatusReason
		code   string // of the exit
	}{
		"success":        {nil, metav1.StatusSuccess, "", ""},
		"exit code 0":    {exited(0), metav1.StatusSuccess, "", ""},
		"exit code 3":    {exited(3), metav1.StatusFailure, "NonZeroExitCode", "3"},
		"a wrapped code": {fmt.Errorf("run: %w", exited(4)), metav1.StatusFailure, "NonZeroExitCode", "4"},
		"a status": {apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("y")), metav1.StatusFailure,
			metav1.StatusReasonConflict, ""},
		"any other error":    {errors.New("no"), metav1.StatusFailure, metav1.StatusReasonInternalError, ""},
		"a panic, from here": {guardedPanic(t), metav1.StatusFailure, metav1.StatusReasonInternalError, ""},
	} {
		s := newSession(t.Context(), Limits{})
		got := statusOf(s, test.err)
		s.end()
		code := ""
		if got.Details != nil && len(got.Details.Causes) > 0 {
			code = got.Details.Causes[0].Message
		}
		if test.code == "" {
			code = ""
		}
		if got.Status != test.status || got.Reason != test.reason || code != test.code {
			t.Errorf("%s: %s, %s, code %q; want %s, %s, %q", name, got.Status, got.Reason, code, test.status, test.reason, test.code)
		}
	}
}

func guardedPanic(t *testing.T) error {
	t.Helper()
	err, panicked := guarded(t.Context(), func() error { panic("secret") })
	if !panicked || strings.Contains(err.Error(), "secret") {
		t.Errorf("a panic becomes %v, %v", err, panicked)
	}
	return err
}

// A terminal that does not read its sizes has the newest when it does.
func TestSizes_newest(t *testing.T) {
	s := newSizes()
	s.follow(strings.NewReader(`{"Width":1,"Height":1}{"Width":80,"Height":24}nonsense{"Width":2,"Height":2}`))
	if got := <-s.newest; got != (remotecommand.TerminalSize{Width: 80, Height: 24}) {
		t.Errorf("the newest size is %v", got)
	}
	if _, more := <-s.newest; more {
		t.Error("there are more sizes behind the end of the stream")
	}
	if _, more := <-none(); more {
		t.Error("what is no terminal has a size")
	}
}

func TestWriting_pieces(t *testing.T) {
	var pieces []int
	var all bytes.Buffer
	w := writerFunc(func(p []byte) (int, error) {
		pieces = append(pieces, len(p))
		return all.Write(p)
	})
	data := bytes.Repeat([]byte("0123456789"), (2*chunk+10)/10)
	if n, err := w.Write(data); n != len(data) || err != nil || !bytes.Equal(all.Bytes(), data) {
		t.Errorf("written are %d of %d bytes; %v", n, len(data), err)
	}
	if want := []int{chunk, chunk, len(data) - 2*chunk}; !slices.Equal(pieces, want) {
		t.Errorf("the pieces have %v bytes, want %v", pieces, want)
	}
	broken := errors.New("gone")
	failing := writerFunc(func(p []byte) (int, error) { return 5, broken })
	if n, err := failing.Write(data); n != 5 || !errors.Is(err, broken) {
		t.Errorf("%d bytes before the error, %v", n, err)
	}
}

func TestQuery_streams(t *testing.T) {
	if got, want := Query(RequestedStreams{Stdin: true, TTY: true}).Encode(), "stderr=false&stdin=true&stdout=false&tty=true"; got != want {
		t.Errorf("the query is %s, want %s", got, want)
	}
}
