package streams

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/outcome"
)

// Limits bound the duration of sessions. A limit that is not positive does not apply.
type Limits struct {
	// Idle is the maximum time without data in either direction. Pings do not count as data.
	Idle time.Duration
	// Total is the maximum duration of a session.
	Total time.Duration
}

const (
	// pingPeriod is the interval of pings. patience is the time after which a WebSocket client that answers no ping
	// counts as gone. With SPDY, a dead client looks like a client that does not read; there, TCP keepalive detects it.
	pingPeriod = 15 * time.Second
	patience   = time.Minute
	// grace is how long a function may take to end after its context.
	grace = 10 * time.Second
	// withdrawnGrace replaces grace if the client may not continue.
	withdrawnGrace = 2 * time.Second
	// linger is how long the end of a session waits for the client to close the connection. If the server closed it
	// while the client still sends, sent data could be lost.
	linger = 2 * time.Second
	// sending bounds the write of the final status.
	sending = 10 * time.Second
	// opening is how long clients may take to open their streams, as with kubelet.
	opening = 30 * time.Second
	// looking is the interval at which a sending client's connection is checked while its session does not read.
	looking = 250 * time.Millisecond
	// chunk is the maximum size of a message, so that streams take turns.
	chunk = 32 << 10
)

// The causes of the end of a session's context.
var (
	errGone     = fmt.Errorf("the client has gone: %w", io.ErrUnexpectedEOF)
	errIdle     = errors.New("the session was idle for too long")
	errTotal    = errors.New("the session exceeded its maximum duration")
	errStopping = errors.New("the server is shutting down")
	errOver     = errors.New("the session is over")
)

// session is one upgraded connection.
type session struct {
	// ctx ends with the client, a limit, the server, or the session.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	limits  Limits
	started time.Time
	used    atomic.Int64 // time of the last data, in nanoseconds since started
	gone    chan struct{}
	isGone  sync.Once

	mu   sync.Mutex
	conn net.Conn // nil before it is hijacked
	ping func()

	closing sync.Once
	over    chan struct{}
	watcher sync.WaitGroup
}

func newSession(parent context.Context, limits Limits) *session {
	s := &session{limits: limits, started: time.Now(), gone: make(chan struct{}), over: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		cause := context.Cause(parent)
		switch {
		case isStatus(cause):
			s.cancel(cause) // the caller may not continue
		case s.conn == nil:
			s.cancel(errGone)
		default:
			s.cancel(errStopping) // the client's end is detected on its connection
		}
	})
	context.AfterFunc(s.ctx, func() { stop() })
	return s
}

// isStatus reports whether a cause is an API status, which means that the caller may not continue.
func isStatus(cause error) bool {
	_, is := apierr.Status(cause)
	return is
}

// use records that data was sent or received.
func (s *session) use() { s.used.Store(int64(time.Since(s.started))) }

// left records that the client has gone.
func (s *session) left() {
	s.cancel(errGone)
	s.isGone.Do(func() { close(s.gone) })
}

// end closes the connection and waits for the watcher.
func (s *session) end() {
	s.cancel(errOver)
	s.closing.Do(func() { close(s.over) })
	s.close()
	s.watcher.Wait()
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close() // the client has gone or has been notified
	}
}

// result returns the outcome of the session, given the error of its function.
func (s *session) result(err error) string {
	switch cause := context.Cause(s.ctx); {
	case errors.Is(cause, errGone):
		return outcome.Gone
	case errors.Is(cause, errIdle):
		return outcome.Idle
	case errors.Is(cause, errTotal):
		return outcome.Total
	case errors.Is(cause, errStopping):
		return outcome.Stopping
	case isStatus(cause):
		return outcome.Withdrawn
	case err == nil:
		return outcome.Succeeded
	}
	return outcome.Failed
}

// reason returns the error for the client if the context has ended the function; nil otherwise.
func (s *session) reason() error {
	switch cause := context.Cause(s.ctx); {
	case errors.Is(cause, errIdle), errors.Is(cause, errTotal):
		return apierrors.NewTimeoutError(cause.Error(), 0)
	case errors.Is(cause, errStopping):
		return apierrors.NewServiceUnavailable(cause.Error())
	case isStatus(cause):
		return cause
	}
	return nil
}

// watch ends the session at its limits and when the client has gone, which it detects while nothing is read from the
// client. It closes the connection if the function does not end.
func (s *session) watch() {
	pinged := time.Now()
	for {
		next := looking
		if d, ok := s.untilLimit(); ok {
			next = min(next, max(d, time.Millisecond))
		}
		timer := time.NewTimer(next)
		select {
		case <-s.over:
			timer.Stop()
			return
		case <-s.ctx.Done():
			timer.Stop()
			s.cutOff()
			return
		case <-timer.C:
		}
		switch now := time.Now(); {
		case s.limits.Total > 0 && now.Sub(s.started) >= s.limits.Total:
			s.cancel(errTotal)
		case s.limits.Idle > 0 && now.Sub(s.started)-time.Duration(s.used.Load()) >= s.limits.Idle:
			s.cancel(errIdle)
		case hungUp(s.conn):
			s.left()
		case s.ping != nil && now.Sub(pinged) >= pingPeriod:
			pinged = now
			s.ping()
		}
	}
}

// untilLimit returns the time until the next limit can be reached.
func (s *session) untilLimit() (time.Duration, bool) {
	since := time.Since(s.started)
	d, limited := time.Duration(0), false
	if s.limits.Total > 0 {
		d, limited = s.limits.Total-since, true
	}
	if s.limits.Idle > 0 {
		if idle := s.limits.Idle - (since - time.Duration(s.used.Load())); !limited || idle < d {
			d, limited = idle, true
		}
	}
	return d, limited
}

// cutOff closes the connection of a session that has to end: at once if the client has gone, else after a time in
// which the reason can be sent.
func (s *session) cutOff() {
	left := grace
	if isStatus(context.Cause(s.ctx)) {
		left = withdrawnGrace
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-s.over:
		return
	case <-s.gone:
	case <-timer.C:
	}
	s.close()
}

// takeover is a response writer whose connection becomes the session's when it is hijacked.
type takeover struct {
	http.ResponseWriter
	session *session
}

func (t takeover) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c := &clientConn{Conn: conn, session: t.session}
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ := buffered.Reader.Peek(n) // no more than the buffered bytes
		c.early = bytes.Clone(early)
	}
	s := t.session
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	return c, bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c)), nil
}

// clientConn notifies its session when the client has gone.
type clientConn struct {
	net.Conn
	early   []byte
	session *session
}

func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.session.left()
	}
	return n, err
}

func (c *clientConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.session.left()
	}
	return n, err
}

// Close ends the session: the SPDY library closes the connection when the client announces its end.
func (c *clientConn) Close() error {
	c.session.left()
	return c.Conn.Close()
}

// NetConn returns the underlying connection.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

// begin starts the watcher of the session after its connection was hijacked. ping, which may be nil, keeps the
// connection from appearing idle to intermediaries.
func (s *session) begin(ping func()) {
	s.ping = ping
	s.watcher.Go(s.watch)
}
