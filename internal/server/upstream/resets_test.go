package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestResets_wait(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name   string
		counts int
		later  time.Duration
		want   time.Duration
	}{
		{"none", 0, 0, 0},
		{"a burst", resetBurst, 0, 0},
		{"one more", resetBurst + 1, 0, resetInterval},
		{"a hundred more", resetBurst + 100, 0, 100 * resetInterval},
		{"a hundred more, after the time of sixty", resetBurst + 100, 60 * resetInterval, 40 * resetInterval},
		{"a hundred more, after an hour", resetBurst + 100, time.Hour, 0},
	} {
		var r resets
		for range c.counts {
			r.add(now)
		}
		if got := max(0, r.wait(now.Add(c.later))); got != c.want {
			t.Errorf("%s: the connection waits %s, want %s", c.name, got, c.want)
		}
	}
}

// sending is a connection whose client always has bytes to read.
type sending struct{ net.Conn }

func (sending) Read(p []byte) (int, error) { return len(p), nil }
func (sending) Close() error               { return nil }

// sent returns an HTTP/2 request on a connection.
func sent(conn *connection) (r *http.Request, reset context.CancelFunc) {
	r = asked(conn)
	r.ProtoMajor, r.ProtoMinor = 2, 0
	ctx, reset := context.WithCancel(r.Context())
	return r.WithContext(ctx), reset
}

func newSending() *connection {
	c := &connection{held: heldConn{Conn: sending{}}, owner: newConnections(nil, 0), ended: make(chan struct{})}
	c.Conn = &c.held
	c.local = &localAddr{&net.TCPAddr{}, c}
	return c
}

func TestResetCounter_connections(t *testing.T) {
	for _, c := range []struct {
		name    string
		resets  bool
		major   int
		proxied func(*http.Request) bool
		want    time.Duration
	}{
		{"requests are answered", false, 2, nil, 0},
		{"requests are reset", true, 2, nil, 50 * resetInterval},
		{"requests of HTTP/1.1 end with their connection", true, 1, nil, 0},
		{"a proxy resets requests", true, 2, func(*http.Request) bool { return true }, 0},
		{"a client that is no proxy resets requests", true, 2, func(*http.Request) bool { return false }, 50 * resetInterval},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := newSending()
				for range resetBurst + 50 {
					r, reset := sent(conn)
					r.ProtoMajor = c.major
					if c.resets {
						reset()
					}
					resetCounter{c.proxied}.count(r)
					reset()
				}
				begun := time.Now()
				for range 2 { // the second need not wait
					if n, err := conn.Read(make([]byte, 10)); n != 10 || err != nil {
						t.Fatalf("got %d bytes, %v", n, err)
					}
				}
				if got := time.Since(begun); got != c.want {
					t.Fatalf("the server read after %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestConnection_closedInPause_endsRead(t *testing.T) {
	for name, end := range map[string]func(*connection){
		"closed":  func(c *connection) { _ = c.Close() },
		"cut off": func(c *connection) { c.owner.open[c] = struct{}{}; c.owner.cut() },
		"given up for another": func(c *connection) {
			c.owner.mu.Lock()
			defer c.owner.mu.Unlock()
			c.owner.close(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := newSending()
				for range resetBurst + 10_000 {
					conn.resets.add(time.Now())
				}
				failed := make(chan error)
				go func() {
					_, err := conn.Read(make([]byte, 10))
					failed <- err
				}()
				synctest.Wait()
				begun := time.Now()
				end(conn)
				if err := <-failed; !errors.Is(err, net.ErrClosed) || time.Since(begun) != 0 {
					t.Fatalf("got %v after %s", err, time.Since(begun))
				}
			})
		})
	}
}
