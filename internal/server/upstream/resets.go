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
	// resetBurst is how many requests a client may reset on a connection before the server reads from it more slowly: enough that a
	// client may end the watches of all its kinds at once.
	resetBurst = 250
	// resetInterval is the time for which the server does not read from a connection for each further reset.
	resetInterval = 10 * time.Millisecond
)

// resets bounds how many requests a client begins and resets on an HTTP/2 connection. The limit of streams does not: a client may
// begin the next request as soon as it has reset the last, while the server has all the work of beginning it. So the server
// reads less often from a connection with many resets. Its other requests wait with these, and those of other connections do not.
//
// It may be used concurrently. The zero value has no resets.
type resets struct {
	// paid is the time, in nanoseconds since 1970, when the resets until now count no more.
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

// wait returns for how long the connection is not to be read from.
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

// pause waits, and reports whether the connection is still open then.
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

// resetCounter counts the requests that clients reset as those of their connections.
type resetCounter struct {
	proxied func(*http.Request) bool // nil if there are no proxies
}

// newResetCounter returns a counter that leaves out the requests of proxies: many users share a connection of these, and one of
// them would make the others wait.
func newResetCounter(proxies *authenticatorfactory.RequestHeaderConfig) resetCounter {
	if proxies == nil {
		return resetCounter{}
	}
	return resetCounter{clientcert.Proxied(proxies)}
}

// count counts a request that has been handled, if its client has reset it.
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
