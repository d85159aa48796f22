package etcdtest_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy forwards TCP connections to a target, and can delay and cut them. It ends with the test.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	delay   time.Duration          // of every response
	refuses func(from string) bool // nil lets all pass
	breaks  bool                   // connections that are refused
	open    map[*proxied]bool
	closed  bool
	serving sync.WaitGroup
}

// proxied is one connection through a proxy, with the etcd member that it comes from if it belongs to a peer.
type proxied struct {
	from     string
	in, out  net.Conn
	released chan struct{} // closed when it may continue
	once     sync.Once
}

func (c *proxied) close() {
	c.once.Do(func() { close(c.released) })
	c.in.Close()
	if c.out != nil {
		c.out.Close()
	}
}

// startProxy forwards connections to an address, where no server needs to listen yet.
func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, open: map[*proxied]bool{}}
	p.serving.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.closeAll()
		p.serving.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// slow delays all responses from now on.
func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// cut stops all traffic of members for which refuses is true, in either direction. Connections break, as with an
// unreachable machine, or stay open in silence, as when packets vanish. Nil heals, and breaks open connections.
func (p *proxy) cut(refuses func(from string) bool, breaks bool) {
	p.mu.Lock()
	p.refuses, p.breaks = refuses, breaks
	p.mu.Unlock()
	if refuses == nil || breaks {
		p.closeAll() // some of them may have lost data
	}
}

func (p *proxy) serve() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &proxied{in: in, released: make(chan struct{})}
		p.mu.Lock()
		p.open[c] = true
		closed := p.closed
		p.mu.Unlock()
		if closed {
			c.close()
			continue
		}
		p.serving.Go(func() {
			defer func() {
				p.mu.Lock()
				delete(p.open, c)
				p.mu.Unlock()
				c.close()
			}()
			p.forward(c)
		})
	}
}

// forward copies both ways. The first data of a peer identifies it.
func (p *proxy) forward(c *proxied) {
	first := make([]byte, 64<<10)
	n, err := c.in.Read(first)
	if err != nil {
		return
	}
	c.from = memberHeader(first[:n])
	if !p.pass(c) {
		return
	}
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.mu.Lock()
	c.out = out
	p.mu.Unlock()
	if _, err := out.Write(first[:n]); err != nil {
		return
	}
	var copies sync.WaitGroup
	copies.Go(func() { p.copy(c, out, c.in, false); c.close() })
	copies.Go(func() { p.copy(c, c.in, out, true); c.close() })
	copies.Wait()
}

func (p *proxy) copy(c *proxied, to io.Writer, from io.Reader, answers bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !p.pass(c) {
			return
		}
		p.mu.Lock()
		delay := p.delay
		p.mu.Unlock()
		if answers && delay > 0 {
			select {
			case <-time.After(delay):
			case <-c.released:
				return
			}
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// pass holds a connection while it is cut, and returns false when it has to end.
func (p *proxy) pass(c *proxied) bool {
	p.mu.Lock()
	cut, breaks := p.refuses != nil && p.refuses(c.from), p.breaks
	p.mu.Unlock()
	switch {
	case cut && breaks:
		return false
	case cut:
		<-c.released
	}
	select {
	case <-c.released:
		return false
	default:
		return true
	}
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	open := make([]*proxied, 0, len(p.open))
	for c := range p.open {
		open = append(open, c)
	}
	p.mu.Unlock()
	for _, c := range open {
		p.mu.Lock()
		c.close()
		p.mu.Unlock()
	}
}

// memberHeader returns the etcd member that begins a connection to a peer.
func memberHeader(request []byte) string {
	_, after, found := bytes.Cut(request, []byte("\r\nX-Server-From: "))
	if !found {
		return ""
	}
	id, _, _ := bytes.Cut(after, []byte("\r\n"))
	return string(id)
}
