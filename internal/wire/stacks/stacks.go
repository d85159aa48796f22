// Package stacks runs functions on goroutines whose stacks have already grown. Growing and copying a new stack for each
// request costs a tenth of a short request's processor time. A Pool reuses goroutines for a short time; it does not
// bound their number.
package stacks

import (
	"fmt"
	"net/http"
	"runtime"
	"time"
)

// patience is how long an idle goroutine waits for another function before it ends.
const patience = 100 * time.Millisecond

// Pool holds as many goroutines as have recently run functions at the same time. Idle goroutines end by themselves. It
// may be used concurrently.
type Pool struct{ work chan func() }

// New returns a pool without goroutines.
func New() *Pool { return &Pool{make(chan func())} }

// Go runs f on another goroutine, like the go statement. f must not panic.
func (p *Pool) Go(f func()) {
	select {
	case p.work <- f: // an idle goroutine took it
	default:
		go p.run(f)
	}
}

// Do runs f as Go does, and returns when f has returned. If f panics, Do panics with WithStack of the value.
func (p *Pool) Do(f func()) {
	var reason any
	ended := make(chan struct{})
	p.Go(func() {
		defer close(ended)
		defer func() { reason = WithStack(recover()) }()
		f()
	})
	if <-ended; reason != nil {
		panic(reason)
	}
}

// WithStack adds the stack of the calling goroutine to the value of a panic, which is to be repeated on another one. It
// returns nil as it is, and http.ErrAbortHandler, which ends a request without a message in the log.
func WithStack(reason any) any {
	if reason == nil || reason == http.ErrAbortHandler {
		return reason
	}
	stack := make([]byte, 64<<10)
	return fmt.Sprintf("%v\n%s", reason, stack[:runtime.Stack(stack, false)])
}

func (p *Pool) run(f func()) {
	f()
	wait := time.NewTimer(patience)
	defer wait.Stop()
	for {
		select {
		case f := <-p.work:
			f()
			wait.Reset(patience)
		case <-wait.C:
			return
		}
	}
}
