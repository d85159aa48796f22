package annex

import (
	"context"
	"crypto/tls"
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
)

// Instance is a server that New has opened.
type Instance struct {
	server *serve.Server
}

// New opens a server: it checks the whole definition, opens the storage, and binds the ports, so that errors appear
// before Run. A mistake in the definition or the options is a *ConfigError. No request is answered before Run. An
// instance that is not run must be closed. The context bounds only New.
func New(ctx context.Context, server Server, options Options) (*Instance, error) {
	defined, err := Define(server)
	if err != nil {
		return nil, err
	}
	d := definition.Of(defined)
	p, err := plan.Resolve(d, options, nil)
	if err != nil {
		return nil, config.Mistake(err)
	}
	s, err := serve.New(ctx, p, d.NewEnv)
	if err != nil {
		return nil, config.Mistake(err)
	}
	return &Instance{server: s}, nil
}

// Run serves until the context ends. Then it completes the requests in flight, ends watches, and closes the
// instance; after Options.ShutdownTimeout it cancels the remaining work. Meanwhile /readyz fails, and new requests
// get a 503 with a Retry-After header. ready, which may be nil, is called once the server is ready. Run returns nil
// after such a shutdown. Calling it again or after Close is an error.
func (i *Instance) Run(ctx context.Context, ready func()) error {
	if ready == nil {
		ready = func() {}
	}
	return i.server.Run(ctx, ready)
}

// Close releases the resources of an instance that is not run. After Run it does nothing.
func (i *Instance) Close() error { return i.server.Close() }

// Handler returns the instance's whole HTTP interface, with authentication, authorization, limits and audit, for a
// listener of the program's own. It answers while Run runs. Requests other than watches set the read and write
// deadlines of their connection, if it has any, by Options.RequestTimeout.
func (i *Instance) Handler() http.Handler { return i.server.Handler() }

// TLSConfig returns the instance's TLS configuration, for a listener of the program's own that serves Handler. It
// uses the instance's certificate, including renewals, and requests client certificates.
// Options.Serving.ExternalHostname is the host name of that listener: the certificate covers it, and the kubeconfig
// uses it. TLSConfig returns an error if there is no usable certificate yet.
func (i *Instance) TLSConfig() (*tls.Config, error) { return i.server.TLSConfig() }

// URL returns the instance's HTTPS URL for clients on this machine. If it does not listen, the URL has
// Options.Serving.ExternalHostname, and is empty without one.
func (i *Instance) URL() string { return i.server.URL() }

// InsecureURL returns the instance's plain HTTP URL for clients on this machine; empty if it does not listen.
func (i *Instance) InsecureURL() string { return i.server.InsecureURL() }

// Socket returns the absolute path of the instance's Unix socket; empty if it has none.
func (i *Instance) Socket() string { return i.server.Socket() }

// Kubeconfig returns the absolute path of the administrator's kubeconfig, which New writes. It is empty without a
// data directory or a URL, and for an aggregated server.
func (i *Instance) Kubeconfig() string { return i.server.Kubeconfig() }

// ClientConfig returns a client configuration with the administrator's permissions. Clients connect over HTTPS, or
// call the handler within the process if the instance does not listen or is aggregated and has no administrator.
func (i *Instance) ClientConfig() (*rest.Config, error) { return i.server.ClientConfig() }

// newEnv implements definition.EnvFunc.
func newEnv(definition *define.Server, client *rest.Config, informers *informer.Set, roots func() []byte) any {
	return &Env{definition: definition, informers: informers, client: client, roots: roots}
}
