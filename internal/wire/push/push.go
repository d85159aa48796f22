// Package push is the contract between storages, handlers and listeners by which one goroutine writes a watch from the
// log of events to the connection, and by which output that is due at the same time on a connection is written
// together.
//
// It holds the interfaces Output and Connection, the type Rest for the remaining work of a request, and their context
// keys. It does not implement the interfaces: handlers of watches implement Output, which storages call, and listeners
// implement Connection, which handlers call.
package push

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

// Output receives the events of a watch until the watch's context ends. Send, SendStored and Flush must be called from
// one goroutine; the other methods may be called from any.
type Output interface {
	// Send adds an event to the output without waiting for the client. shared is set if other watches send the same
	// event. full is set if Flush must be called before the next event.
	Send(event watch.Event, shared bool) (full bool, err error)
	// Encoding returns the encoding of the objects that SendStored accepts; nil if it accepts none.
	Encoding() *verbatim.Encoding
	// SendStored is like Send for an initial object in the output's encoding. The output does not keep the fragment's bytes.
	SendStored(object verbatim.Fragment) (full bool, err error)
	// Flush writes the sent events to the connection. It waits for a slow client.
	Flush() error
	// Deeply calls f and returns when f has returned. It is for functions that need a larger stack than a watch that
	// waits for events; f may run on another goroutine.
	Deeply(f func())
	// Hold buffers writes to the connection until Release has been called as often as Hold, or for a short while.
	Hold()
	// Release ends one Hold.
	Release()
}

// Connection can buffer its writes. The local address of a connection implements it if the connection was accepted by a
// listener that supports this.
type Connection interface {
	Hold()
	Release()
	// Gather buffers the following writes until they reach that many bytes, or for a short while, if this saves writes.
	Gather(bytes int)
}

// ConnectionOf returns the connection of an HTTP/2 request; nil if it does not buffer writes.
func ConnectionOf(r *http.Request) Connection {
	if r.ProtoMajor != 2 {
		return nil // HTTP/1 has one request at a time on a connection, and buffers of its own.
	}
	c, _ := r.Context().Value(http.LocalAddrContextKey).(Connection)
	return c
}

// Whole announces that the complete body of an HTTP/2 response follows, and nothing after it. The headers and the body,
// which are two frames, can then be written together.
func Whole(r *http.Request, body []byte) {
	if c := ConnectionOf(r); c != nil {
		c.Gather(len(body))
	}
}

type outputKey struct{}

// WithOutput returns a context in which a watch may be written to an output. Then the watch's ResultChan writes all
// events, returns when the watch has ended, and returns a closed channel.
func WithOutput(ctx context.Context, out Output) context.Context {
	return context.WithValue(ctx, outputKey{}, out)
}

// OutputFrom returns the output of a watch; nil if there is none.
func OutputFrom(ctx context.Context) Output {
	out, _ := ctx.Value(outputKey{}).(Output)
	return out
}
