package upstream

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// heldBytes is the largest number of written bytes that a connection holds back.
	heldBytes = 64 << 10
	// heldTime is the longest time for which it holds bytes back. An event reaches all watches of a connection in
	// less time. Without the limit, a single watch whose client grants no more flow control would delay the others.
	heldTime = 2 * time.Millisecond
	// writtenBytes is the largest number of bytes of a system call: fewer than heldBytes, and the TLS record of up to
	// 16 KiB and its header that makes them enough. Written in two calls, they would double the calls of a list.
	writtenBytes = heldBytes + 17<<10
	// stallTime is the time after which a connection is closed if the client takes no byte while bytes are written to
	// it. The deadlines of HTTP/2 end streams with a frame, which cannot be written then.
	stallTime = 30 * time.Second
)

// heldConn is a connection whose writes can be held back for a moment. An event for many watches of a connection is
// as many frames, TLS records and system calls, of which the system calls are the most expensive. With heldConn they
// leave together.
//
// The response for an object is two frames, and would be two records and two system calls. While other requests are
// answered too, both frames leave together as well.
//
// heldConn is below TLS: bytes that are held back keep their order, and the next write returns the error of an
// earlier write.
type heldConn struct {
	net.Conn
	buffers *sync.Pool // shared by the listener's connections
	holds   atomic.Int32
	awaited atomic.Int64 // number of bytes that must arrive before any are written

	mu      sync.Mutex // locked while the connection is written to
	pending []byte
	timer   *time.Timer // nil until bytes have been held back
	armed   bool
	stalled *time.Timer // closes the connection if a write blocks; nil before the first write
	err     error
}

// write writes to the connection, and closes it if the client takes nothing for stallTime. The caller must hold mu.
func (c *heldConn) write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		if c.stalled == nil {
			c.stalled = time.AfterFunc(stallTime, func() { _ = c.Conn.Close() })
		} else {
			c.stalled.Reset(stallTime)
		}
		var written int
		written, err = c.Conn.Write(p[:min(len(p), writtenBytes)])
		c.stalled.Stop()
		n, p = n+written, p[written:]
	}
	return n, err
}

// Hold holds written bytes back until Release has been called as often as Hold, heldBytes have accumulated, or
// heldTime has passed.
func (c *heldConn) Hold() { c.holds.Add(1) }

// Release ends a Hold.
func (c *heldConn) Release() {
	if c.holds.Add(-1) == 0 {
		c.flush()
	}
}

// Gather holds bytes back from now on until so many have been written, or until heldTime has passed. It does not
// wait: another goroutine may write them later. Bytes that other goroutines write meanwhile count as well.
func (c *heldConn) Gather(bytes int) {
	if bytes < heldBytes {
		c.awaited.Store(int64(bytes))
	}
}

// gathers reports whether more bytes are awaited after the given number has arrived.
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
			c.timer = time.AfterFunc(heldTime, c.flushLate)
		} else {
			c.timer.Reset(heldTime)
		}
	}
	return len(p), nil
}

// buffer returns a buffer for held bytes, which idle connections do not have.
func (c *heldConn) buffer() []byte {
	if b, ok := c.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, writtenBytes)
}

func (c *heldConn) keep(b []byte) { c.buffers.Put(&b) }

// flushLate writes bytes that have been held back for heldTime.
func (c *heldConn) flushLate() {
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

// tryFlush flushes unless a write is in progress, which may be the very write that a new deadline has to end.
func (c *heldConn) tryFlush() {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		_ = c.flushLocked()
	}
}

// flushLocked writes the held bytes. The caller must hold mu.
func (c *heldConn) flushLocked() error {
	if len(c.pending) == 0 || c.err != nil {
		return c.err
	}
	_, c.err = c.write(c.pending)
	c.keep(c.pending)
	c.pending = nil
	if c.err != nil {
		// Closing also ends the reader: there may be no other write that could return the error.
		_ = c.Conn.Close()
	}
	return c.err
}

// SetDeadline implements net.Conn. It does not apply to bytes that have been held back before.
func (c *heldConn) SetDeadline(t time.Time) error {
	c.tryFlush()
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn. It does not apply to bytes that have been held back before: TLS lets no bytes
// be written once it has sent its close notification.
func (c *heldConn) SetWriteDeadline(t time.Time) error {
	c.tryFlush()
	return c.Conn.SetWriteDeadline(t)
}

// Close implements net.Conn. It does not wait for a write that a client blocks.
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
