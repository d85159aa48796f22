package upstream

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// heldBytes is how much of what is written a connection keeps back at most.
	heldBytes = 64 << 10
	// heldTime is for how long it does so at most. An event reaches all watches of a connection in less; one of them
	// whose client gives it no more room would hold up the others.
	heldTime = 2 * time.Millisecond
	// stallTime is how long a client may take no byte at all while bytes are written to its connection. The deadlines of
	// HTTP/2 end streams by a frame, which cannot be written then.
	stallTime = 30 * time.Second
)

// heldConn is a connection whose writes can be kept back for a moment. An event that many watches of a connection wait
// for is as many frames, records of TLS and system calls, which are the dearest of these: so they leave together.
//
// An answer of an object is two frames, and would be two of each: while others are answered too, these leave together as well.
//
// Below TLS, what is kept back is in the order that it was written in, and an error is told by the next write.
type heldConn struct {
	net.Conn
	buffers *sync.Pool // of the listener
	holds   atomic.Int32
	awaited atomic.Int64 // bytes that are to come before any are written

	mu      sync.Mutex // held while the connection is written to
	pending []byte
	timer   *time.Timer // nil until something was kept back
	armed   bool
	stalled *time.Timer // closes the connection while it is written to; nil before the first write
	err     error
}

// write writes to the connection, and closes it if the client takes nothing for stallTime. It needs mu.
func (c *heldConn) write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		if c.stalled == nil {
			c.stalled = time.AfterFunc(stallTime, func() { _ = c.Conn.Close() })
		} else {
			c.stalled.Reset(stallTime)
		}
		var written int
		written, err = c.Conn.Write(p[:min(len(p), heldBytes)])
		c.stalled.Stop()
		n, p = n+written, p[written:]
	}
	return n, err
}

// Hold keeps what is written back until Release was called as often, heldBytes have come together, or heldTime is over.
func (c *heldConn) Hold() { c.holds.Add(1) }

// Release ends a Hold.
func (c *heldConn) Release() {
	if c.holds.Add(-1) == 0 {
		c.flush()
	}
}

// Gather keeps what is written from now on back until it is so many bytes, or heldTime is over. It does not wait: what
// writes them may be another goroutine, later. What others write meanwhile counts, too.
func (c *heldConn) Gather(bytes int) {
	if bytes < heldBytes {
		c.awaited.Store(int64(bytes))
	}
}

// gathers tells whether more is awaited after so many bytes have come.
func (c *heldConn) gathers(bytes int) bool {
	for {
		awaited := c.awaited.Load()
		if awaited <= 0 {
			return false
		}
		left := max(awaited-int64(bytes), 0)
		if c.awaited.CompareAndSwap(awaited, left) {
			return left > 0
		}
	}
}

// Write implements net.Conn.
func (c *heldConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	held := c.gathers(len(p)) || c.holds.Load() > 0
	if !held && len(c.pending) == 0 {
		return c.write(p)
	}
	if c.pending == nil {
		c.pending = c.buffer()
	}
	c.pending = append(c.pending, p...)
	if !held || len(c.pending) >= heldBytes {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	if !c.armed {
		c.armed = true
		if c.timer == nil {
			c.timer = time.AfterFunc(heldTime, c.late)
		} else {
			c.timer.Reset(heldTime)
		}
	}
	return len(p), nil
}

// buffer returns one for what is kept back: connections have none that are idle.
func (c *heldConn) buffer() []byte {
	if b, ok := c.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, heldBytes+heldBytes/4)
}

func (c *heldConn) keep(b []byte) { c.buffers.Put(&b) }

// late writes what has been kept back for long enough.
func (c *heldConn) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	c.awaited.Store(0)
	_ = c.flushLocked()
}

func (c *heldConn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.flushLocked()
}

// tryFlush leaves what is kept back to a write that is under way, which may be one that a deadline is to end.
func (c *heldConn) tryFlush() {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		_ = c.flushLocked()
	}
}

// flushLocked writes what was kept back. It needs mu.
func (c *heldConn) flushLocked() error {
	if len(c.pending) == 0 || c.err != nil {
		return c.err
	}
	_, c.err = c.write(c.pending)
	c.keep(c.pending)
	c.pending = nil
	if c.err != nil {
		// Which ends what reads from it, too: there may be no other write.
		_ = c.Conn.Close()
	}
	return c.err
}

// SetDeadline implements net.Conn. What was kept back before is not subject to it.
func (c *heldConn) SetDeadline(t time.Time) error {
	c.tryFlush()
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn. What was kept back before is not subject to it: TLS lets no more be written
// once it has said goodbye.
func (c *heldConn) SetWriteDeadline(t time.Time) error {
	c.tryFlush()
	return c.Conn.SetWriteDeadline(t)
}

// Close implements net.Conn. It does not wait for a write that a client holds up.
func (c *heldConn) Close() error {
	if c.mu.TryLock() {
		if len(c.pending) > 0 {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(heldTime))
			_ = c.flushLocked()
		}
		if c.timer != nil {
			c.timer.Stop()
		}
		c.mu.Unlock()
	}
	return c.Conn.Close()
}
