package annex

import "context"

// Controller is a client that works for a server: it watches objects and does what
// they ask for.
type Controller struct {
	// Name is a DNS label, by which flags and logs know the controller.
	Name string
	// Run works until the context ends, and then returns. It is called once the server
	// is ready. If it returns an error before, or panics, that is logged and it is called
	// again: after a second, and twice as long each time, up to a minute; the first wait
	// is a second again once it has run for five minutes. If it returns nil, its work is
	// done. The server goes on in any case. At the end, the server waits for Run as long
	// as Options.ShutdownTimeout.
	//
	// The environment is the server that the controller works for, be it this process or not:
	// its ClientConfig is for clients and informers of the controller's own.
	Run func(ctx context.Context, env *Env) error
}
