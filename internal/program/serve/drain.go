package serve

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// signals are the turning points in the life of a server. Run closes these channels.
type signals struct {
	// initialized is closed when the mode has initialized the storages and the watch caches are filled, or
	// cacheTimeout has passed.
	initialized chan struct{}
	// draining is closed before stopping: /readyz fails from then on.
	draining chan struct{}
	stopping chan struct{}
}

func newSignals() signals {
	return signals{initialized: make(chan struct{}), draining: make(chan struct{}), stopping: make(chan struct{})}
}

// drain ends the work of a server, each part of it before the parts that it needs.
type drain struct {
	signals        signals
	delay, timeout time.Duration

	stopControllers    func()
	leave              func(ctx context.Context) // of the mode
	waitForControllers []func()
	stopInformers      func()
	awaitRequests      func(ctx context.Context) error
	stopListening      func(ctx context.Context)
}

func (d drain) run(ctx context.Context) {
	d.stopControllers()
	d.begin(ctx)
	for _, wait := range d.waitForControllers {
		wait()
	}
	d.stopInformers()
	d.shutDown(ctx)
}

// begin makes /readyz fail, so that load balancers send requests elsewhere. The server still answers requests for
// the delay.
func (d drain) begin(ctx context.Context) {
	delay := time.NewTimer(d.delay)
	defer delay.Stop()
	close(d.signals.draining)
	d.leave(ctx)
	if d.delay > 0 {
		<-delay.C
	}
}

// shutDown rejects new requests and waits for requests in flight, for the timeout at most.
func (d drain) shutDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	close(d.signals.stopping)
	if err := d.awaitRequests(ctx); err != nil {
		klog.FromContext(ctx).Error(nil, "The shutdown closed connections of requests in progress", "timeout", d.timeout)
	}
	idle, cancel := context.WithTimeout(ctx, idleTimeout)
	defer cancel()
	d.stopListening(idle)
}

// idleTimeout bounds the time for connections to close after their last response: for the last bytes, and for
// HTTP/2's GOAWAY, which takes a second. Connections with an incomplete request or handshake would delay a shutdown
// much longer.
const idleTimeout = 2 * time.Second
