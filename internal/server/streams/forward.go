package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilportforward "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/annexapi/annex/internal/base/outcome"
)

// Dial connects to a port, from 1 to 65535. The caller owns the connection.
type Dial func(ctx context.Context, port int32) (net.Conn, error)

// maxForwards is the maximum number of concurrently forwarded connections of one client.
const maxForwards = 1024

// ServeForward connects the client of a request with ports, over SPDY, plain or in a WebSocket. An error of dial is
// sent to the client over the error stream of the connection concerned.
func ServeForward(w http.ResponseWriter, r *http.Request, refuse Refuse, limits Limits, dial Dial) {
	s := newSession(r.Context(), limits)
	defer s.end()
	f := &forwarder{session: s, dial: dial, halves: map[string]forward{}}
	conn, err := f.open(takeover{w, s}, r)
	if err != nil {
		s.notOpened(w, r, refuse, err)
		return
	}
	f.conn = conn
	close(f.ready)
	s.begin(nil)
	select {
	case <-conn.CloseChan():
		s.left()
	case <-s.ctx.Done():
	}
	outcome.Set(r.Context(), s.result(nil))
	_ = conn.Close() // resets its streams, which ends the copying
	f.mu.Lock()      // from then on, no stream is accepted
	for _, half := range f.halves {
		half.late.Stop()
	}
	f.mu.Unlock()
	f.forwards.Wait()
}

// forwarder forwards the connections of one client.
type forwarder struct {
	session *session
	dial    Dial
	conn    httpstream.Connection
	ready   chan struct{} // closed when conn is set

	mu       sync.Mutex
	halves   map[string]forward // connections that wait for their second stream, by request
	opened   int
	forwards sync.WaitGroup
}

// forward is one connection, consisting of two streams.
type forward struct {
	data, errors httpstream.Stream
	late         *time.Timer
}

func (f *forwarder) open(w http.ResponseWriter, r *http.Request) (httpstream.Connection, error) {
	f.ready = make(chan struct{})
	switch {
	case wsstream.IsWebSocketRequest(r):
		offered := utilportforward.WebsocketsSPDYTunnelingPrefix + utilportforward.PortForwardV1Name
		protocol, err := negotiate(websocket.Subprotocols(r), []string{offered})
		if err != nil {
			return nil, err
		}
		tunnel, err := upgrade(w, r, protocol)
		if err != nil {
			return nil, err
		}
		inside := &frames{Conn: portforward.NewTunnelingConnectionWithLogger(klog.FromContext(r.Context()), tunnel)}
		return spdy.NewServerConnectionWithPings(inside, f.accept, pingPeriod)
	case isSPDY(r):
		protocol, err := negotiate(listed(r.Header.Values(httpstream.HeaderProtocolVersion)), []string{utilportforward.PortForwardV1Name, ""})
		if err != nil {
			return nil, err
		}
		if protocol != "" {
			w.Header().Set(httpstream.HeaderProtocolVersion, protocol)
		}
		conn := spdy.NewResponseUpgraderWithPings(pingPeriod).UpgradeResponse(framedWriter{w}, r, f.accept)
		if conn == nil {
			return nil, errors.New("the server could not hijack the connection")
		}
		return conn, nil
	}
	return nil, notServed(r)
}

// accept is called for each stream that the client opens. An error resets the stream.
func (f *forwarder) accept(stream httpstream.Stream, accepted <-chan struct{}) error {
	headers := stream.Headers()
	if port, err := strconv.ParseUint(headers.Get(corev1.PortHeader), 10, 16); err != nil || port == 0 {
		return fmt.Errorf("header %s must be a port, not %q", corev1.PortHeader, headers.Get(corev1.PortHeader))
	}
	kind := headers.Get(corev1.StreamType)
	if !slices.Contains([]string{corev1.StreamTypeData, corev1.StreamTypeError}, kind) {
		return fmt.Errorf("header %s has the value %q: must be "+
			"%s or %s", corev1.StreamType, kind, corev1.StreamTypeData, corev1.StreamTypeError)
	}
	// Old clients do not number connections, but open the error stream directly before the data stream.
	id := headers.Get(corev1.PortForwardRequestIDHeader)
	if number := stream.Identifier(); id == "" && kind == corev1.StreamTypeError {
		id = "stream " + strconv.Itoa(int(number))
	} else if id == "" {
		id = "stream " + strconv.Itoa(int(number)-2)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session.ctx.Err() != nil {
		return context.Cause(f.session.ctx)
	}
	half, begun := f.halves[id]
	switch {
	case !begun && f.opened == maxForwards:
		return fmt.Errorf("at most %d connections are forwarded at a time", maxForwards)
	case kind == corev1.StreamTypeData && half.data != nil, kind == corev1.StreamTypeError && half.errors != nil:
		return fmt.Errorf("stream %s of connection %s exists already", kind, id)
	case kind == corev1.StreamTypeData:
		half.data = stream
	default:
		half.errors = stream
	}
	if !begun {
		f.opened++
		half.late = time.AfterFunc(opening, func() { f.giveUp(id) })
		f.halves[id] = half
		return nil
	}
	if !half.late.Stop() {
		return fmt.Errorf("the other stream of connection %s came too late", id)
	}
	delete(f.halves, id)
	f.forwards.Go(func() { f.serve(half, accepted) })
	return nil
}

// giveUp drops a connection whose second stream did not arrive.
func (f *forwarder) giveUp(id string) {
	f.mu.Lock()
	half := f.halves[id]
	delete(f.halves, id)
	f.opened--
	f.mu.Unlock()
	f.drop(half.data, half.errors)
}

// drop removes the streams of a connection, of which one may be nil. Streams that the client has not closed are
// reset.
func (f *forwarder) drop(streams ...httpstream.Stream) {
	<-f.ready
	for _, stream := range streams {
		if stream != nil {
			f.conn.RemoveStreams(stream)
			_ = stream.Reset() // if the connection fails, the client notices
		}
	}
}

// serve forwards one connection until both sides have closed it.
func (f *forwarder) serve(one forward, accepted <-chan struct{}) {
	defer func() {
		f.mu.Lock()
		f.opened--
		f.mu.Unlock()
	}()
	<-f.ready // the first streams may arrive before conn is set
	select {
	case <-accepted:
	case <-f.session.ctx.Done():
		return
	}
	port, _ := strconv.ParseUint(one.data.Headers().Get(corev1.PortHeader), 10, 16) // accept has parsed it
	ctx := f.session.ctx
	var backend net.Conn
	err, _ := guarded(ctx, func() (err error) {
		backend, err = f.dial(ctx, int32(port))
		return err
	})
	if err == nil && backend == nil {
		err = apierrors.NewInternalError(errors.New("no connection"))
	}
	if err == nil {
		err = f.join(ctx, one.data, backend)
	}
	if err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(one.errors, "error forwarding port %d: %v", port, err) // if the connection fails, the client notices
	}
	_ = one.errors.Close()
	_ = one.data.Close()
	if err != nil {
		f.untilClosed(one)
		f.drop(one.data)
	}
	f.conn.RemoveStreams(one.data)
	f.drop(one.errors)
}

// join copies in both directions. It returns errors of the backend, whose methods may be a user's and may panic.
func (f *forwarder) join(ctx context.Context, data httpstream.Stream, backend net.Conn) error {
	defer backend.Close()
	defer context.AfterFunc(ctx, func() { backend.Close() })()
	var sends sync.WaitGroup
	sends.Go(func() {
		err, _ := guarded(ctx, func() error {
			if err := f.copy(backend, data); err != nil {
				return err
			}
			halfClose(backend)
			return nil
		})
		if err != nil {
			backend.Close() // ends the other direction
		}
	})
	err, _ := guarded(ctx, func() error { return f.copy(data, backend) })
	if errors.Is(err, net.ErrClosed) {
		err = nil // it was closed here
	}
	_ = data.Close() // the client sees the end, and then closes its own side
	sends.Wait()
	return err
}

// untilClosed waits a moment for the client to close its side, which it does after it has read the other one.
func (f *forwarder) untilClosed(one forward) {
	late := time.AfterFunc(linger, func() { _ = one.data.Reset() })
	defer late.Stop()
	_, _ = io.Copy(io.Discard, one.data)
}

// copy copies until the end and records the use of the session.
func (f *forwarder) copy(to io.Writer, from io.Reader) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			f.session.use()
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return f.session.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// halfClose signals the end of the client's data to a backend. A backend without CloseWrite is closed after its own
// last data.
func halfClose(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // fails if the connection is closed
	}
}
