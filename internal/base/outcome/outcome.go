// Package outcome tells what counts a connection how it ended. What serves the connection knows
// that, far from the handler chain, which counts.
package outcome

import (
	"context"
	"sync/atomic"
)

// Results of connections, which metrics are labelled with.
const (
	// Ended is a connection of which no more is known.
	Ended = "ended"
	// Refused was answered with an error before anything was upgraded.
	Refused = "refused"
	// Succeeded and Failed are what the function that was connected with said; ExitCode is a
	// command that ended with one that is not zero.
	Succeeded = "succeeded"
	Failed    = "failed"
	ExitCode  = "exit_code"
	Panicked  = "panicked"
	// Gone is a client that went first.
	Gone = "client_gone"
	// Idle, Total, Withdrawn and Stopping are what ended the connection: a limit of it, a caller whose credential or rights
	// are gone, or the server.
	Idle      = "idle_limit"
	Total     = "total_limit"
	Withdrawn = "access_withdrawn"
	Stopping  = "server_stopping"
)

type key struct{}

// Outcome is how one connection ended.
type Outcome struct{ result atomic.Value }

// With returns a context in which Set is heard.
func With(ctx context.Context) (context.Context, *Outcome) {
	o := new(Outcome)
	return context.WithValue(ctx, key{}, o), o
}

// Set says how the connection of a context ends, one of the results above. The first one counts;
// without With it does nothing.
func Set(ctx context.Context, result string) {
	if o, ok := ctx.Value(key{}).(*Outcome); ok {
		o.result.CompareAndSwap(nil, result)
	}
}

// Result is what Set said, and Ended if it was not called.
func (o *Outcome) Result() string {
	if result, ok := o.result.Load().(string); ok {
		return result
	}
	return Ended
}
