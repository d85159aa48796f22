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

// Instance is a server made by New.
type Instance struct {
	server *serve.Server
}

// New makes a server: it checks the whole definition, opens the storage, and binds the ports, so that everything that
// can fail fails here. A mistake in the definition or the options is a *ConfigError. The server answers no request
// before Run. Close an instance that does not run. The context bounds New only.
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

// Run serves until the context ends. Then it completes the requests in flight, ends watches, and closes the instance;
// it cancels work that takes longer than Options.ShutdownTimeout. Meanwhile /readyz fails, and new requests get 503
// with a Retry-After header. ready, which may be nil, is called once the server is ready. Run returns nil after such
// an end. It returns an error if it is called again or after Close.
func (i *Instance) Run(ctx context.Context, ready func()) error {
	if ready == nil {
		ready = func() {}
	}
	return i.server.Run(ctx, ready)
}

// Close releases the resources that New opened, for an instance that does not run. Otherwise it does nothing.
func (i *Instance) Close() error { return i.server.Close() }

// Handler returns the whole HTTP interface of the instance, with authentication, authorization, limits and audit, for
// serving it on another listener. It answers while Run runs. Requests other than watches set the read and write
// deadlines of their connection, if it supports them, by Options.RequestTimeout.
func (i *Instance) Handler() http.Handler { return i.server.Handler() }

// TLSConfig returns the TLS configuration of the instance, for the program's own listener that serves Handler. The
// configuration follows renewals of the serving certificate, and requests client certificates. Set
// Options.Serving.ExternalHostname to the name of that listener: the certificate then covers the name, and the
// kubeconfig uses it. TLSConfig returns an error while there is no usable certificate.
func (i *Instance) TLSConfig() (*tls.Config, error) { return i.server.TLSConfig() }

// URL returns the HTTPS URL of the instance for clients on this machine. If the instance does not listen, it is the
// URL of Options.Serving.ExternalHostname, or empty without one.
func (i *Instance) URL() string { return i.server.URL() }

// InsecureURL returns the URL of the instance by plain HTTP for clients on this machine; empty if it does not listen.
func (i *Instance) InsecureURL() string { return i.server.InsecureURL() }

// Socket returns the absolute path of the instance's Unix socket; empty if it has none.
func (i *Instance) Socket() string { return i.server.Socket() }

// Kubeconfig returns the absolute path of the administrator's kubeconfig, which New writes. It is empty without a data
// directory or a URL, and for an aggregated instance.
func (i *Instance) Kubeconfig() string { return i.server.Kubeconfig() }

// ClientConfig returns a configuration for clients with the administrator's rights. They use HTTPS, or calls within
// the process if the instance does not listen, or is aggregated and has no administrator.
func (i *Instance) ClientConfig() (*rest.Config, error) { return i.server.ClientConfig() }

// newEnv implements definition.EnvFunc.
func newEnv(definition *define.Server, client *rest.Config, informers *informer.Set, roots func() []byte) any {
	return &Env{definition: definition, informers: informers, client: client, roots: roots}
}
