package upstream

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/stacks"
)

// Listening is a listener whose connections are being served.
type Listening struct {
	connections  *connections
	stop         chan struct{}
	idle, closed <-chan struct{}
}

// ServePlain is Serving.TLS without TLS.
func ServePlain(l net.Listener, handler http.Handler, grace time.Duration) (*Listening, error) {
	listening := newListening(l)
	plain := &http.Server{
		Handler:           listening.connections.counting(handler),
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
	}
	var err error
	if listening.idle, listening.closed, err = server.RunServer(plain, listening.connections, grace, listening.stop); err != nil {
		return nil, fmt.Errorf("serve HTTP: %w", err)
	}
	return listening, nil
}

func newListening(l net.Listener) *Listening {
	return &Listening{connections: newConnections(l, maxConnections()), stop: make(chan struct{})}
}

// Shutdown closes the listener and waits until its connections are idle. When the context ends, it closes the
// remaining connections.
func (l *Listening) Shutdown(ctx context.Context) {
	close(l.stop)
	<-l.closed
	select {
	case <-l.idle:
	case <-ctx.Done():
	}
	l.connections.cut()
}

// connections is a listener that knows its open connections and limits their number. The HTTP server's own Shutdown
// abandons busy connections, and the HTTP server accepts connections, even of unauthenticated clients, until the
// process has no files left for the storage to open.
//
// Connections cost a client nothing, so connections without a request make room for new ones. Connections that have
// never had a request may use only a part of the places, both per host and in total; beyond that the oldest of them
// is closed for a new one. If all places are taken, the oldest such connection or the connection that has been idle
// for longest is closed, depending on which list is longer. A connection is refused only if every open connection has
// a request in progress.
type connections struct {
	net.Listener
	most int // 0 means no limit
	// buffers are for bytes that connections hold back.
	buffers sync.Pool
	stacks  watchStacks
	// answering is the number of requests in progress, without watches.
	answering atomic.Int32

	mu      sync.Mutex
	open    map[*connection]struct{} // nil once no more are accepted
	fresh   list.List                // connections that have had no request, oldest first
	freshOf map[string]int           // number of fresh connections by host
	idle    list.List                // connections without a request in progress, longest idle first
	full    bool                     // connections are being refused
}

// Connections that have had no request may take 1/freshOfHost of all places per host, and 1/freshOfAll in total.
const (
	freshOfHost = 4
	freshOfAll  = 2
)

func newConnections(l net.Listener, most int) *connections {
	return &connections{
		Listener: l,
		most:     most,
		stacks:   watchStacks{stacks.New()},
		open:     map[*connection]struct{}{},
		freshOf:  map[string]int{},
	}
}

func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &connection{held: heldConn{Conn: conn, buffers: &c.buffers}, owner: c, ended: make(chan struct{})}
		accepted.Conn = &accepted.held
		accepted.local = &localAddr{conn.LocalAddr(), accepted}
		if host, _, err := net.SplitHostPort(conn.RemoteAddr().String()); err == nil {
			accepted.host = host
		}
		if c.add(accepted) {
			return accepted, nil
		}
		_ = conn.Close()
	}
}

// add registers a connection and reports whether there is room for it. It closes other connections to make room.
func (c *connections) add(conn *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return false
	}
	if c.most > 0 {
		if c.freshOf[conn.host] >= max(1, c.most/freshOfHost) {
			c.close(c.oldestOf(conn.host))
		}
		if c.fresh.Len() >= max(1, c.most/freshOfAll) {
			c.close(first(&c.fresh))
		}
		if len(c.open) >= c.most {
			larger := &c.fresh
			if c.idle.Len() > c.fresh.Len() {
				larger = &c.idle
			}
			c.close(first(larger))
		}
	}
	full := c.most > 0 && len(c.open) >= c.most
	if full && !c.full {
		klog.Background().Error(nil, "Refusing connections, because too many are open", "address", c.Addr().String(), "open", len(c.open))
	}
	if c.full = full; full {
		return false
	}
	c.open[conn] = struct{}{}
	c.freshOf[conn.host]++
	conn.enqueue(&c.fresh)
	return true
}

// oldestOf returns the oldest connection of a host that has had no request.
func (c *connections) oldestOf(host string) *connection {
	for e := c.fresh.Front(); e != nil; e = e.Next() {
		if conn := e.Value.(*connection); conn.host == host {
			return conn
		}
	}
	return nil
}

func first(l *list.List) *connection {
	if l.Len() == 0 {
		return nil
	}
	return l.Front().Value.(*connection)
}

// close closes a connection. It does nothing if conn is nil. The caller must hold mu.
func (c *connections) close(conn *connection) {
	if conn == nil {
		return
	}
	c.forget(conn)
	_ = conn.end()
}

// forget removes a connection from all lists. The caller must hold mu.
func (c *connections) forget(conn *connection) {
	delete(c.open, conn)
	conn.dequeue()
}

// counting returns a handler that counts requests for their connections.
func (c *connections) counting(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := c.begin(r)
		defer c.end(conn)
		if !strings.Contains(r.URL.RawQuery, "watch=") {
			c.answering.Add(1)
			defer c.answering.Add(-1)
			if r.Method == http.MethodGet {
				growSmallStack(len(r.RemoteAddr))
			} else {
				growStack(len(r.RemoteAddr))
			}
			handler.ServeHTTP(w, r)
			return
		}
		ctx, rest := push.WithRest(r.Context())
		c.stacks.serve(handler, w, r.WithContext(ctx), rest)
	})
}

// watchStacks runs the handlers of watches, which return before the watch waits for events.
type watchStacks struct{ pool *stacks.Pool }

// serve runs a handler on another goroutine. The rest, which the handler leaves, runs on this goroutine, whose stack
// is small.
func (s watchStacks) serve(handler http.Handler, w http.ResponseWriter, r *http.Request, rest *push.Rest) {
	returned := false
	defer func() {
		if !returned { // after a panic, the ends that filters have put around the rest still have to run
			rest.Drop()
			rest.Do()
		}
	}()
	s.pool.Do(func() {
		growStack(len(r.RemoteAddr))
		handler.ServeHTTP(w, r)
	})
	returned = true
	rest.Do()
}

// begin returns the connection of a request that begins. It returns nil if the connection has been closed meanwhile.
func (c *connections) begin(r *http.Request) *connection {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*localAddr)
	if !ok {
		return nil
	}
	conn := local.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.open[conn]; !ok {
		return nil
	}
	conn.dequeue()
	conn.requests++
	return conn
}

func (c *connections) end(conn *connection) {
	if conn == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.requests--
	if _, ok := c.open[conn]; ok && conn.requests == 0 {
		conn.enqueue(&c.idle)
	}
}

// cut closes all connections. The listener accepts no more.
func (c *connections) cut() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range open {
		_ = conn.end()
	}
}

// connection is a connection of connections, whose mu guards it.
type connection struct {
	net.Conn // &held
	held     heldConn
	owner    *connections
	local    *localAddr
	host     string
	resets   resets
	ending   sync.Once
	ended    chan struct{} // closed with the connection
	requests int           // number of requests in progress
	queue    *list.List    // fresh or idle; nil while there are requests
	element  *list.Element
}

// localAddr is the local address of a connection. net/http puts it in the contexts of the connection's requests
// ([http.LocalAddrContextKey]), through which they find the connection.
type localAddr struct {
	net.Addr
	connection *connection
}

var _ push.Connection = (*localAddr)(nil)

// Hold implements push.Connection.
func (a *localAddr) Hold() { a.connection.held.Hold() }

// Release implements push.Connection.
func (a *localAddr) Release() { a.connection.held.Release() }

// Gather implements push.Connection. It does nothing for a single request: its client is better woken by the headers,
// so that it is ready when the body arrives.
func (a *localAddr) Gather(bytes int) {
	if a.connection.owner.answering.Load() > 1 {
		a.connection.held.Gather(bytes)
	}
}

// LocalAddr implements net.Conn.
func (c *connection) LocalAddr() net.Addr { return c.local }

func (c *connection) enqueue(in *list.List) { c.queue, c.element = in, in.PushBack(c) }

func (c *connection) dequeue() {
	if c.queue == nil {
		return
	}
	if c.queue == &c.owner.fresh {
		if c.owner.freshOf[c.host]--; c.owner.freshOf[c.host] == 0 {
			delete(c.owner.freshOf, c.host)
		}
	}
	c.queue.Remove(c.element)
	c.queue, c.element = nil, nil
}

func (c *connection) Close() error {
	c.owner.mu.Lock()
	c.owner.forget(c)
	c.owner.mu.Unlock()
	return c.end()
}

// end closes the connection, and wakes a reader that pauses.
func (c *connection) end() error {
	c.ending.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

// NetConn returns the underlying connection, which sessions use to find out whether the client is still connected.
func (c *connection) NetConn() net.Conn { return c.held.Conn }

// stackNeed is more than half of the stack that a request needs, so that the runtime, which doubles stacks, allocates
// one of 32 KiB. Reads need half of that, which is the largest size of which each processor caches some stacks.
const (
	stackNeed      = 16 << 10
	smallStackNeed = stackNeed / 2
)

// growStack grows the stack of a request's goroutine to the size that the request needs, in one step. HTTP/2 starts a
// goroutine with 2 KiB per request. Each time the stack is too small, all frames are copied to a stack twice as
// large: four times, the last time from below forty filters. That took an eighth of the processor time of a write.
// The garbage collector shrinks the stacks of goroutines that then only wait, such as those of watches.
//
// The argument is not negative. So the frame is not used, and not cleared either, but the stack must have room for it.
//
//go:noinline
func growStack(i int) byte {
	if i < 0 {
		var frame [stackNeed]byte
		return last(frame[:], i)
	}
	return 0
}

//go:noinline
func last(frame []byte, i int) byte { return frame[len(frame)+i] }

// growSmallStack is growStack for reads.
//
//go:noinline
func growSmallStack(i int) byte {
	if i < 0 {
		var frame [smallStackNeed]byte
		return last(frame[:], i)
	}
	return 0
}
