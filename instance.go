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

// New makes a server: it checks the definition as a whole, opens the storage, and
// binds the ports, so that whatever can fail fails here. A mistake in the
// definition or the options is a *ConfigError. Nothing is answered before Run. An
// instance that is not run must be closed. The context bounds New only.
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

// Run serves until the context ends. Then it answers the requests in progress,
// ends watches, and closes the instance; what takes longer than
// Options.ShutdownTimeout is cut off. Meanwhile /readyz fails, and new requests get
// a 503 that says when to try again. ready, which may be nil, is called once the
// server is ready. Run returns nil after such an end. It is an error to call it
// again or after Close.
func (i *Instance) Run(ctx context.Context, ready func()) error {
	if ready == nil {
		ready = func() {}
	}
	return i.server.Run(ctx, ready)
}

// Close releases what New opened. It is for instances that are not run; for others
// it does nothing.
func (i *Instance) Close() error { return i.server.Close() }

// Handler is the instance's whole HTTP interface, with authentication, authorization, limits
// and audit, for serving it on a listener of one's own. It answers while Run runs. Requests
// other than watches set the read and write deadlines of their connection, where it
// has any, by Options.RequestTimeout.
func (i *Instance) Handler() http.Handler { return i.server.Handler() }

// TLSConfig is how the instance speaks TLS, for the listener of one's own that Handler is
// served on: with its certificate, which is followed when it is renewed, and asking for
// clients'. With Options.Serving.ExternalHostname, which says where that listener is, the
// certificate covers that name, and the kubeconfig leads there. An error says that there is no
// usable certificate yet.
func (i *Instance) TLSConfig() (*tls.Config, error) { return i.server.TLSConfig() }

// URL is where clients on this machine reach the instance by HTTPS. If it does not listen, that
// is what Options.Serving.ExternalHostname says, and empty without one.
func (i *Instance) URL() string { return i.server.URL() }

// InsecureURL is where clients on this machine reach the instance by plain HTTP;
// empty if it does not listen.
func (i *Instance) InsecureURL() string { return i.server.InsecureURL() }

// Socket is the absolute path of the instance's Unix socket; empty if it has none.
func (i *Instance) Socket() string { return i.server.Socket() }

// Kubeconfig is the absolute path of the administrator's kubeconfig, which New
// writes; empty if there is no data directory, or no URL, or if it is aggregated.
func (i *Instance) Kubeconfig() string { return i.server.Kubeconfig() }

// ClientConfig returns a configuration for clients with the administrator's
// rights: over HTTPS, or within the process if the instance does not listen, or is
// aggregated and has no administrator.
func (i *Instance) ClientConfig() (*rest.Config, error) { return i.server.ClientConfig() }

// newEnv implements definition.EnvFunc.
func newEnv(definition *define.Server, client *rest.Config, informers *informer.Set, roots func() []byte) any {
	return &Env{definition: definition, informers: informers, client: client, roots: roots}
}
