package annextest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// faultHeader is in answers that no server gave. Its value is the kind of the fault.
const faultHeader = "Annextest-Fault"

// Conflict answers writes with 409, as if another writer had changed the object meanwhile: apierrors.IsConflict is true
// for the error. The server does not get the request.
func (s *Selection) Conflict() *Fault {
	s.test.Helper()
	return s.inject("conflict", answered(func(t target) error {
		return apierrors.NewConflict(t.groupResource(), t.name,
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}), "create", "update", "patch", "delete", "deletecollection")
}

// TooManyRequests answers with 429 and a Retry-After header of whole seconds, rounded up: apierrors.IsTooManyRequests is
// true for the error. The server does not get the request. client-go waits so long and repeats the request by itself, up
// to ten times, so that the code under test sees a delay and no error. With 0 there is no header, and the code under test
// gets the error.
func (s *Selection) TooManyRequests(retryAfter time.Duration) *Fault {
	s.test.Helper()
	seconds := math.Ceil(retryAfter.Seconds())
	if seconds < 0 || seconds > math.MaxInt32 {
		s.test.Fatalf("fault: %s: Retry-After cannot be %s", s.rule.text, retryAfter)
	}
	return s.inject("429", answered(func(target) error {
		return apierrors.NewTooManyRequests("the server has received too many requests and has asked us to try again later", int(seconds))
	}))
}

// InternalError answers with 500: apierrors.IsInternalError is true for the error. The server does not get the request. As
// the fault of a webhook, the webhook answers the API server so.
func (s *Selection) InternalError() *Fault {
	s.test.Helper()
	return s.inject("500", failing{answered(func(target) error { return apierrors.NewInternalError(errors.New("injected by the test")) })})
}

// Timeout answers with 504: apierrors.IsTimeout is true for the error. The server does not get the request. LoseAnswer is
// the case in which the server carried it out.
func (s *Selection) Timeout() *Fault {
	s.test.Helper()
	return s.inject("timeout", answered(func(target) error {
		return apierrors.NewTimeoutError("request did not complete within the requested timeout", 0)
	}))
}

// Error answers with an error of package apierrors, such as apierrors.NewForbidden returns. Any other error is returned
// in the place of an answer, for example syscall.ECONNREFUSED. The server does not get the request.
func (s *Selection) Error(err error) *Fault {
	s.test.Helper()
	if err == nil {
		s.test.Fatalf("fault: %s: the error is nil", s.rule.text)
	}
	return s.inject("error", answered(func(target) error { return err }))
}

// LoseAnswer sends the request to the server, which carries it out, and then breaks the connection: the code under test
// does not learn whether its write was done. client-go repeats reads by itself.
func (s *Selection) LoseAnswer() *Fault {
	s.test.Helper()
	return s.inject("lost answer", lost{})
}

// Hang never answers: the request ends when its client gives up or the test ends. The server does not get the request. As
// the fault of a webhook, the API server waits until the timeout of the webhook's configuration.
func (s *Selection) Hang() *Fault {
	s.test.Helper()
	return s.inject("hang", hanging{s.rule.over})
}

// Delay sends the request to the server after a pause, which the end of the test ends early. As the fault of a webhook, the
// webhook is slow. A duration below 0 fails the test.
func (s *Selection) Delay(d time.Duration) *Fault {
	s.test.Helper()
	if d < 0 {
		s.test.Fatalf("fault: %s: the delay cannot be %s", s.rule.text, d)
	}
	return s.inject("delay", delayed{d, s.rule.over})
}

// Stale answers a get or a list as the server answered the same request of the same client configuration last, before the
// fault: a cache that lags does so. Requests without an earlier answer do not count, so that First(1) is the second get of
// an object.
func (s *Selection) Stale() *Fault {
	s.test.Helper()
	return s.inject("stale", &stale{answers: map[string]*kept{}}, "get", "list")
}

// EndWatch ends a watch between two events, after a number of events that is at least 0. Bookmarks are not counted. The
// client watches again from the last event.
func (s *Selection) EndWatch(events int) *Fault {
	s.test.Helper()
	return s.interrupt("watch ended", events, ended)
}

// CutWatch breaks the connection of a watch in the middle of an event, after a number of whole events that is at least 0.
// Bookmarks are not counted.
func (s *Selection) CutWatch(events int) *Fault {
	s.test.Helper()
	return s.interrupt("watch cut", events, cut)
}

// ExpireWatch ends a watch with the error 410, after a number of events that is at least 0. Bookmarks are not counted. The
// client lists again: an informer misses the changes between.
func (s *Selection) ExpireWatch(events int) *Fault {
	s.test.Helper()
	return s.interrupt("watch expired", events, expired)
}

func (s *Selection) interrupt(name string, events int, how interruption) *Fault {
	s.test.Helper()
	if events < 0 {
		s.test.Fatalf("fault: %s: a watch cannot end after %d events", s.rule.text, events)
	}
	return s.inject(name, interrupted{events, how}, "watch")
}

// effect carries out a fault.
type effect interface {
	// answer answers a request that meets the fault. next is the server, behind the faults that follow.
	answer(r *http.Request, t target, next func() (*http.Response, error)) (*http.Response, error)
}

// readyEffect is an effect that cannot answer every request.
type readyEffect interface {
	effect
	ready(r *http.Request) bool
	// observe answers a request that does not meet the fault.
	observe(r *http.Request, next func() (*http.Response, error)) (*http.Response, error)
}

// faulty is the transport of a client that meets faults.
type faulty struct {
	faults *Faults
	prefix string
	next   http.RoundTripper
}

// WrappedRoundTripper returns the transport behind the faults, which dialers of client-go look for.
func (f *faulty) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper.
func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	f.faults.mu.Lock()
	rules := f.faults.rules[:len(f.faults.rules):len(f.faults.rules)]
	f.faults.mu.Unlock()
	if len(rules) == 0 || r.Context().Value(ownRequest{}) != nil {
		return f.next.RoundTrip(r)
	}
	return f.through(rules, r, targetOf(r, f.prefix))
}

// through sends a request through the rules to the server.
func (f *faulty) through(rules []*rule, r *http.Request, t target) (*http.Response, error) {
	for i, rule := range rules {
		if rule.webhook {
			continue
		}
		if !rule.selects(t) {
			f.faults.pass(rule, t)
			continue
		}
		next := func() (*http.Response, error) { return f.through(rules[i+1:], r, t) }
		observer, observes := rule.effect.(readyEffect)
		if observes && !observer.ready(r) || !f.faults.due(rule, t) {
			if observes {
				return observer.observe(r, next)
			}
			continue
		}
		response, err := rule.effect.answer(r, t, next)
		if response != nil && response.Header.Get(faultHeader) == "" {
			response.Header.Set(faultHeader, rule.kind)
		}
		if err != nil {
			err = &injectedError{rule.kind, err}
		}
		return response, err
	}
	return f.next.RoundTrip(r)
}

// injectedError is an error of a request that met a fault.
type injectedError struct {
	kind string
	err  error
}

func (e *injectedError) Error() string {
	return fmt.Sprintf("injected by the test (%s): %v", e.kind, e.err)
}
func (e *injectedError) Unwrap() error { return e.err }

// Timeout is that of net.Error, as the error behind has it.
func (e *injectedError) Timeout() bool {
	t, ok := e.err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

func (t target) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: t.group, Resource: t.resource}
}

// answered is the fault of an error: that of an answer if it is one of package apierrors, else that of the transport.
type answered func(t target) error

func (a answered) answer(r *http.Request, t target, _ func() (*http.Response, error)) (*http.Response, error) {
	closeBody(r)
	err := a(t)
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil, err
	}
	answer := status.Status()
	contentType, data, err := encode(r.Header.Get("Accept"), &answer)
	if err != nil {
		return nil, fmt.Errorf("encode the error: %w", err)
	}
	header := http.Header{"Content-Type": {contentType}, "Cache-Control": {"no-cache, private"}}
	if d := answer.Details; d != nil && d.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	return respond(r, int(answer.Code), header, data), nil
}

// respond makes an answer that no server gave.
func respond(r *http.Request, code int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}

// closeBody closes the body of a request, as a transport must even if it does not send the request.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// errLost is an error that client-go takes for a broken connection. It compares io.ErrUnexpectedEOF by identity, which the
// injectedError around it hides, but looks for ECONNRESET inside of errors.
var errLost = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, syscall.ECONNRESET)

type lost struct{}

func (lost) answer(_ *http.Request, _ target, next func() (*http.Response, error)) (*http.Response, error) {
	response, err := next()
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	return nil, errLost
}

type hanging struct{ over <-chan struct{} }

func (h hanging) answer(r *http.Request, _ target, _ func() (*http.Response, error)) (*http.Response, error) {
	closeBody(r)
	select {
	case <-h.over:
		return nil, errors.New("the test ended")
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

type delayed struct {
	pause time.Duration
	over  <-chan struct{}
}

func (d delayed) answer(r *http.Request, _ target, next func() (*http.Response, error)) (*http.Response, error) {
	if err := sleep(r, d.over, d.pause); err != nil {
		closeBody(r)
		return nil, err
	}
	return next()
}

// stale keeps the last answer to each request.
type stale struct {
	mu      sync.Mutex
	answers map[string]*kept
}

// kept is an answer of the server.
type kept struct {
	code   int
	header http.Header
	body   []byte
}

const (
	// mostKept bounds the requests whose answers a fault keeps, and mostKeptBytes the bytes of an answer.
	mostKept      = 1000
	mostKeptBytes = 8 << 20
)

// sameRequest identifies requests that may have the same answer.
func sameRequest(r *http.Request) string {
	return r.Method + " " + r.URL.String() + " " + r.Header.Get("Accept") + " " + r.Header.Get("Impersonate-User")
}

func (s *stale) ready(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers[sameRequest(r)] != nil
}

func (s *stale) answer(r *http.Request, _ target, next func() (*http.Response, error)) (*http.Response, error) {
	s.mu.Lock()
	k := s.answers[sameRequest(r)]
	s.mu.Unlock()
	if k == nil {
		return next()
	}
	closeBody(r)
	header := k.header.Clone()
	return respond(r, k.code, header, k.body), nil
}

func (s *stale) observe(r *http.Request, next func() (*http.Response, error)) (*http.Response, error) {
	response, err := next()
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	if fault := response.Header.Get(faultHeader); fault != "" && fault != "delay" {
		return response, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, mostKeptBytes+1))
	whole := response.Body
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), failingReader{err}, whole), whole}
	if err != nil || len(body) > mostKeptBytes {
		return response, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := sameRequest(r); s.answers[key] != nil || len(s.answers) < mostKept {
		s.answers[key] = &kept{response.StatusCode, response.Header.Clone(), body}
	}
	return response, nil
}

// failingReader returns an error; io.EOF for nil.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// interruption is the way in which a watch ends.
type interruption int

const (
	ended interruption = iota
	cut
	expired
)

type interrupted struct {
	events int
	how    interruption
}

func (i interrupted) answer(r *http.Request, _ target, next func() (*http.Response, error)) (*http.Response, error) {
	response, err := next()
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	frames, ok := newSplitter(response.Header.Get("Content-Type"))
	if !ok {
		_ = response.Body.Close()
		return nil, fmt.Errorf("events of media type %s cannot be counted", response.Header.Get("Content-Type"))
	}
	response.Body = &interruptedBody{ReadCloser: response.Body, interrupted: i, frames: frames, left: i.events}
	return response, nil
}

// interruptedBody is the body of a watch that ends after some events. One goroutine reads it.
type interruptedBody struct {
	io.ReadCloser
	interrupted
	frames *splitter
	left   int
	// ready has the bytes that may be read; err follows them.
	ready []byte
	err   error
}

func (b *interruptedBody) Read(p []byte) (int, error) {
	for len(b.ready) == 0 && b.err == nil {
		if b.left == 0 && b.how != cut {
			b.finish(nil)
			break
		}
		data := make([]byte, 32<<10)
		n, err := b.ReadCloser.Read(data)
		b.take(b.frames.push(data[:n]))
		if err != nil && b.err == nil {
			b.ready, b.err = append(b.ready, b.frames.rest...), err
		}
	}
	if len(b.ready) > 0 {
		n := copy(p, b.ready)
		b.ready = b.ready[n:]
		return n, nil
	}
	return 0, b.err
}

// take lets frames through until the watch ends.
func (b *interruptedBody) take(frames [][]byte) {
	for _, frame := range frames {
		kind, _, err := b.frames.event(frame)
		if counted := err != nil || kind != watch.Bookmark; counted {
			if b.left == 0 {
				b.finish(frame)
				return
			}
			b.left--
		}
		b.ready = append(b.ready, frame...)
		if b.left == 0 && b.how != cut {
			b.finish(nil)
			return
		}
	}
}

// finish ends the watch. next is the frame that follows, of which a cut lets half through.
func (b *interruptedBody) finish(next []byte) {
	b.err = io.EOF
	switch b.how {
	case cut:
		b.ready, b.err = append(b.ready, next[:len(next)/2]...), io.ErrUnexpectedEOF
	case expired:
		status := apierrors.NewResourceExpired("too old resource version: injected by the test").Status()
		frame, err := b.frames.failure(&status)
		if err != nil {
			b.err = err
		}
		b.ready = append(b.ready, frame...)
	}
	_ = b.ReadCloser.Close()
}
