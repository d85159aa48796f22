// Package stacks runs functions on goroutines whose stacks have grown already: growing one anew for each request, and
// copying it each time, is a tenth of a short request's processor time.
package stacks

import "time"

// patience is how long a goroutine waits for more to do before it ends.
const patience = 100 * time.Millisecond

// Pool has as many goroutines as have lately run functions at the same time; they end by themselves when there is nothing
// to do. It may be used concurrently.
type Pool struct{ work chan func() }

// New returns a pool without goroutines.
func New() *Pool { return &Pool{make(chan func())} }

// Go runs a function on a goroutine of its own, as the statement does. The function must not panic.
func (p *Pool) Go(f func()) {
	select {
	case p.work <- f: // one was waiting
	default:
		go p.run(f)
	}
}

// Do runs a function as Go does, and returns when it has returned. If it panics, so does Do.
func (p *Pool) Do(f func()) {
	var reason any
	ended := make(chan struct{})
	p.Go(func() {
		defer close(ended)
		defer func() { reason = recover() }()
		f()
	})
	if <-ended; reason != nil {
		panic(reason)
	}
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
