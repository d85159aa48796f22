package annex

import "context"

// Controller is a client that works for a server: it watches objects and reconciles them.
type Controller struct {
	// Name is a DNS label that identifies the controller in flags and logs.
	Name string
	// Run works until the context ends, and then returns. It is called once the server is ready. If it returns an
	// error before the context ends, or panics, the server logs that and calls it again after a wait: a second at
	// first, twice as long each time, up to a minute. After a run of five minutes, the next wait is a second again.
	// If Run returns nil, the controller is done. A failing controller never ends the server. At shutdown, the
	// server waits for Run, for Options.ShutdownTimeout at most.
	//
	// The environment is that of the controller's server, in this process or in another: ClientConfig is for the
	// controller's own clients and informers.
	Run func(ctx context.Context, env *Env) error
}
