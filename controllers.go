package annex

import "context"

// Controller is a client that works for a server: it watches objects and acts on them.
type Controller struct {
	// Name is a DNS label, which names the controller in flags and logs.
	Name string
	// Run works until the context ends, and then returns. It is called when the server is ready. If it returns an
	// error earlier, or panics, the error is logged and Run is called again, after a second at first. The wait doubles
	// each time, up to a minute, and is a second again after Run has run for five minutes. If Run returns nil, its
	// work is done. The server continues in any case. On shutdown, the server waits for Run up to
	// Options.ShutdownTimeout.
	//
	// env is the server that the controller works for, in this process or in another. Use its ClientConfig for clients
	// and informers of the controller.
	Run func(ctx context.Context, env *Env) error
}
