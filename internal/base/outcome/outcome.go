// Package outcome passes the result of a connection from its handler to the metrics. The handler of the connection
// knows the result, but is far from the handler chain, which counts it.
package outcome

import (
	"context"
	"sync/atomic"
)

// Results of connections, used as labels of metrics.
const (
	// Ended is a connection whose result is unknown.
	Ended = "ended"
	// Refused was answered with an error before it was upgraded.
	Refused = "refused"
	// Succeeded and Failed are results of the connected function; ExitCode is a command with an exit code other than
	// zero.
	Succeeded = "succeeded"
	Failed    = "failed"
	ExitCode  = "exit_code"
	Panicked  = "panicked"
	// Gone means that the client left first.
	Gone = "client_gone"
	// Idle, Total, Withdrawn and Stopping are reasons of the server to end the connection: one of its limits, the
	// loss of the caller's credential or rights, or the end of the server.
	Idle      = "idle_limit"
	Total     = "total_limit"
	Withdrawn = "access_withdrawn"
	Stopping  = "server_stopping"
)

type key struct{}

// Outcome is the result of one connection.
type Outcome struct{ result atomic.Value }

// With returns a context in which Set takes effect.
func With(ctx context.Context) (context.Context, *Outcome) {
	o := new(Outcome)
	return context.WithValue(ctx, key{}, o), o
}

// Set sets the result of a context's connection to one of the results above. Only the first call takes effect;
// without With it does nothing.
func Set(ctx context.Context, result string) {
	if o, ok := ctx.Value(key{}).(*Outcome); ok {
		o.result.CompareAndSwap(nil, result)
	}
}

// Result returns the result passed to Set, and Ended if Set was not called.
func (o *Outcome) Result() string {
	if result, ok := o.result.Load().(string); ok {
		return result
	}
	return Ended
}
