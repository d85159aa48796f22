package upstream

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"

	"github.com/annexapi/annex/internal/identity/clientcert"
)

const (
	// resetBurst is the number of requests that a client may reset on a connection before the server reads from the
	// connection more slowly: enough for a client that ends the watches of all its kinds at once.
	resetBurst = 250
	// resetInterval is the time for which the server does not read from a connection, per further reset.
	resetInterval = 10 * time.Millisecond
)

// resets limits how many requests a client begins and resets on an HTTP/2 connection. The limit of streams does not:
// a client may begin the next request as soon as it has reset the previous one, while the server has all the work of
// beginning it. So the server reads less often from a connection with many resets. All requests of this connection
// wait, and requests of other connections do not.
//
// The methods may be called concurrently. The zero value has no resets.
type resets struct {
	// paid is the time, in nanoseconds since 1970, from which the resets until now no longer count.
	paid atomic.Int64
}

// add counts a reset.
func (r *resets) add(now time.Time) {
	for {
		paid := r.paid.Load()
		if r.paid.CompareAndSwap(paid, max(paid, now.UnixNano())+int64(resetInterval)) {
			return
		}
	}
}

// wait returns how long the server must not read from the connection; zero or less means not at all.
func (r *resets) wait(now time.Time) time.Duration {
	return time.Duration(r.paid.Load()-now.UnixNano()) - resetBurst*resetInterval
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	if c.resets.paid.Load() > 0 {
		if wait := c.resets.wait(time.Now()); wait > 0 && !c.pause(wait) {
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Read(p)
}

// pause waits, and reports whether the connection is still open afterwards.
func (c *connection) pause(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ended:
		return false
	}
}

// resetCounter counts the requests that clients reset, by connection.
type resetCounter struct {
	proxied func(*http.Request) bool // nil if there are no proxies
}

// newResetCounter returns a counter that ignores requests of proxies: many users share a proxy's connection, and one
// of them could delay all others.
func newResetCounter(proxies *authenticatorfactory.RequestHeaderConfig) resetCounter {
	if proxies == nil {
		return resetCounter{}
	}
	return resetCounter{clientcert.Proxied(proxies)}
}

// count counts a handled request if its client has reset it.
func (c resetCounter) count(r *http.Request) {
	if r.ProtoMajor != 2 || r.Context().Err() == nil {
		return
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*localAddr)
	if !ok || c.proxied != nil && c.proxied(r) {
		return
	}
	local.connection.resets.add(time.Now())
}
