// Package push is what storages, handlers and listeners agree on so that a watch goes from the log of events to the
// connection in one goroutine, and that what is due together on a connection leaves together.
package push

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

// Output is where a watch writes its events until its context ends. Send and Flush are for one goroutine; the others may be called by any.
type Output interface {
	// Send takes an event, and says whether Flush is to be called before the next one. An event that is shared is
	// sent by other watches, too. It does not wait for the client.
	Send(event watch.Event, shared bool) (full bool, err error)
	// Form is that of the objects which SendStored takes; nil if it takes none.
	Form() *verbatim.Form
	// SendStored is Send for an object that was there before the watch, of the output's form. What it is made of is not kept.
	SendStored(object verbatim.Piece) (full bool, err error)
	// Flush gives what was sent to the connection. It waits for a client that reads slowly.
	Flush() error
	// Deeply calls a function that needs a larger stack than a watch that waits for events, and returns when it has.
	Deeply(f func())
	// Hold keeps what is written to the connection back until Release was called as often, or for a short while.
	Hold()
	// Release ends a Hold.
	Release()
}

// Connection is one that may keep back what is written to it. The local address of a connection that is accepted by such a
// listener implements it.
type Connection interface {
	Hold()
	Release()
	// Gather keeps what is written from now on back until it is so many bytes, or for a short while, if that saves anything.
	Gather(bytes int)
}

// ConnectionOf returns the connection of a request by HTTP/2; nil if it keeps nothing back.
func ConnectionOf(r *http.Request) Connection {
	if r.ProtoMajor != 2 {
		return nil // A connection has one request at a time, and buffers of its own.
	}
	c, _ := r.Context().Value(http.LocalAddrContextKey).(Connection)
	return c
}

// Whole says that the body of an answer by HTTP/2 is about to be written as a whole, and nothing after it: its headers and its body,
// which are two frames, may leave together.
func Whole(r *http.Request, body []byte) {
	if c := ConnectionOf(r); c != nil {
		c.Gather(len(body))
	}
}

type outputKey struct{}

// WithOutput returns a context in which a watch may be written to an output: by the call of ResultChan, which then
// returns when the watch has ended, and has nothing to receive.
func WithOutput(ctx context.Context, out Output) context.Context {
	return context.WithValue(ctx, outputKey{}, out)
}

// OutputFrom returns the output of a watch; nil if it has none.
func OutputFrom(ctx context.Context) Output {
	out, _ := ctx.Value(outputKey{}).(Output)
	return out
}
