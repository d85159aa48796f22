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

// Listening is a listener whose connections are being answered.
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

// Shutdown closes the listener and waits until its connections are idle. Those that
// are not when the context ends are cut off.
func (l *Listening) Shutdown(ctx context.Context) {
	close(l.stop)
	<-l.closed
	select {
	case <-l.idle:
	case <-ctx.Done():
	}
	l.connections.cut()
}

// connections is a listener that knows its open connections and bounds their
// number: the HTTP server's own Shutdown leaves those that are still busy to
// themselves, and it accepts connections, of strangers too, until the process has no
// files left for the storage to open.
//
// Connections cost a stranger nothing, so that those without a request make room for
// others. Of those that have never had one, a host and all together may have a part only,
// and the oldest is closed for a new one. If all places are taken, so is the oldest of
// them, or the one that has been idle for the longest time, whichever are more. A
// connection is refused only if there is a request on every other.
type connections struct {
	net.Listener
	most int // 0 is any number
	// buffers are for what connections keep back.
	buffers sync.Pool
	begun   watchStacks
	// answering is how many requests, but for watches, are being handled.
	answering atomic.Int32

	mu      sync.Mutex
	open    map[*connection]struct{} // nil if no more are accepted
	fresh   list.List                // those that have had no request, the oldest first
	freshOf map[string]int           // how many of them a host has
	idle    list.List                // those that have no request now, for the longest time first
	full    bool                     // connections are being refused
}

// The parts of all connections that may have had no request yet: of one host, and of all.
const (
	freshOfHost = 4
	freshOfAll  = 2
)

func newConnections(l net.Listener, most int) *connections {
	return &connections{
		Listener: l,
		most:     most,
		begun:    watchStacks{stacks.New()},
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
		accepted := &connection{held: heldConn{Conn: conn, buffers: &c.buffers}, of: c, ended: make(chan struct{})}
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

// add tells whether there is room for one more connection, and makes some if need be.
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
		klog.Background().Error(nil, "Connections are refused, too many are open", "address", c.Addr().String(), "open", len(c.open))
	}
	if c.full = full; full {
		return false
	}
	c.open[conn] = struct{}{}
	c.freshOf[conn.host]++
	conn.waits(&c.fresh)
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

// close closes a connection, if it is one. It needs mu.
func (c *connections) close(conn *connection) {
	if conn == nil {
		return
	}
	c.forget(conn)
	_ = conn.end()
}

// forget takes a connection out of the books. It needs mu.
func (c *connections) forget(conn *connection) {
	delete(c.open, conn)
	conn.waitsNoMore()
}

// counting is a handler whose requests count as those of their connections.
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
		c.begun.serve(handler, w, r.WithContext(ctx), rest)
	})
}

// watchStacks are for the handlers of watches, which return when events are waited for.
type watchStacks struct{ pool *stacks.Pool }

// serve has a handler answer on another goroutine, and does on this one, whose stack is small, what it leaves.
func (s watchStacks) serve(handler http.Handler, w http.ResponseWriter, r *http.Request, rest *push.Rest) {
	returned := false
	defer func() {
		if !returned { // it panicked, and what others do around the rest has to be done
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

// begin returns the connection of a request that begins; nil if it has been closed meanwhile.
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
	conn.waitsNoMore()
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
		conn.waits(&c.idle)
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

// connection is one of a listener's. The listener's mu guards it.
type connection struct {
	net.Conn // held
	held     heldConn
	of       *connections
	local    *localAddr
	host     string
	resets   resets
	ending   sync.Once
	ended    chan struct{} // closed with the connection
	requests int           // that are being handled
	in       *list.List    // fresh or idle, nil while there are requests
	at       *list.Element
}

// localAddr is the local address of a connection. net/http puts it in the contexts of the connection's requests
// ([http.LocalAddrContextKey]), which find the connection by it.
type localAddr struct {
	net.Addr
	connection *connection
}

var _ push.Connection = (*localAddr)(nil)

// Hold implements push.Connection.
func (a *localAddr) Hold() { a.connection.held.Hold() }

// Release implements push.Connection.
func (a *localAddr) Release() { a.connection.held.Release() }

// Gather implements push.Connection. A client that is alone is better woken by the headers: it is there when the body comes.
func (a *localAddr) Gather(bytes int) {
	if a.connection.of.answering.Load() > 1 {
		a.connection.held.Gather(bytes)
	}
}

// LocalAddr implements net.Conn.
func (c *connection) LocalAddr() net.Addr { return c.local }

func (c *connection) waits(in *list.List) { c.in, c.at = in, in.PushBack(c) }

func (c *connection) waitsNoMore() {
	if c.in == nil {
		return
	}
	if c.in == &c.of.fresh {
		if c.of.freshOf[c.host]--; c.of.freshOf[c.host] == 0 {
			delete(c.of.freshOf, c.host)
		}
	}
	c.in.Remove(c.at)
	c.in, c.at = nil, nil
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.end()
}

// end closes the connection, and ends what waits to read from it.
func (c *connection) end() error {
	c.ending.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

// NetConn is the connection below, which sessions ask whether the client is still there.
func (c *connection) NetConn() net.Conn { return c.held.Conn }

// stackNeed is more than half of the stack that a request needs, so that the runtime, which
// doubles stacks, makes one of 32 KiB. Reads need half of that, which is the largest that a
// processor keeps some of for itself.
const (
	stackNeed      = 16 << 10
	smallStackNeed = stackNeed / 2
)

// growStack makes the stack of a request's goroutine as large, at once, as the request will
// need it. HTTP/2 begins a goroutine with 2 KiB for each, and whenever that is too small,
// all frames are copied to a stack twice as large: four times, the last time from below
// forty filters. That took an eighth of a write's processor time. The garbage collector
// shrinks the stacks of those that then only wait, as watches do.
//
//go:noinline
func growStack(i int) byte {
	var frame [stackNeed]byte
	return frame[i&(stackNeed-1)]
}

// growSmallStack is growStack for reads.
//
//go:noinline
func growSmallStack(i int) byte {
	var frame [smallStackNeed]byte
	return frame[i&(smallStackNeed-1)]
}
