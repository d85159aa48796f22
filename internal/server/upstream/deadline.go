package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex/internal/fastpath"
)

// punctualBody is the body of a request whose connection has a read deadline. The server removes the deadline once
// the body has been read, so that the deadline does not end the wait for the client to disconnect.
type punctualBody struct {
	io.ReadCloser
}

func (b punctualBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = apierrors.NewTimeoutError("the request's body did not arrive in time", 0)
	}
	return n, err
}

// requestDeadline is a context with a deadline, like the result of context.WithDeadline. It has no timer and is not
// registered with its parent until its Done channel is needed or it has ended. Requests that are answered from memory
// never need the channel.
type requestDeadline struct {
	parent   context.Context
	answered atomic.Bool // the request has been answered

	mu       sync.Mutex
	deadline time.Time
	timed    atomic.Pointer[timedContext] // nil until it is needed
}

var _ fastpath.Deadline = (*requestDeadline)(nil)

// timedContext is the context that requestDeadline creates on demand. It has the values of the parent.
type timedContext struct {
	context.Context
	cancel context.CancelFunc
}

// newDeadline returns a context that ends at a time, with its parent, or when end is called. The caller must call
// end.
func newDeadline(parent context.Context, at time.Time) *requestDeadline {
	if earlier, ok := parent.Deadline(); ok && earlier.Before(at) {
		at = earlier
	}
	return &requestDeadline{parent: parent, deadline: at}
}

func (d *requestDeadline) make() *timedContext {
	if made := d.timed.Load(); made != nil {
		return made
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	made := d.timed.Load()
	if made == nil {
		made = &timedContext{}
		made.Context, made.cancel = context.WithDeadline(d.parent, d.deadline)
		if d.answered.Load() {
			made.cancel()
		}
		d.timed.Store(made)
	}
	return made
}

// Shorten implements fastpath.Deadline.
func (d *requestDeadline) Shorten(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed.Load() != nil || d.answered.Load() {
		return false
	}
	if at.Before(d.deadline) {
		d.deadline = at
	}
	return true
}

func (d *requestDeadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered.Store(true)
	if made := d.timed.Load(); made != nil {
		made.cancel()
	}
}

// Deadline implements context.Context.
func (d *requestDeadline) Deadline() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.deadline, true
}

// Done implements context.Context.
func (d *requestDeadline) Done() <-chan struct{} { return d.make().Done() }

// Err implements context.Context.
func (d *requestDeadline) Err() error {
	if d.timed.Load() == nil && !d.answered.Load() && d.parent.Err() == nil {
		if deadline, _ := d.Deadline(); time.Now().Before(deadline) {
			return nil
		}
	}
	return d.make().Err()
}

// Value implements context.Context. Through it, package context finds the cause of the end for derived contexts.
func (d *requestDeadline) Value(key any) any {
	if key == (fastpath.DeadlineKey{}) {
		return d
	}
	if d.timed.Load() == nil && !d.answered.Load() {
		return d.parent.Value(key)
	}
	return d.make().Value(key)
}
