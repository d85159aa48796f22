// Package serve opens, runs and drains the server of a plan: it opens the storages and certificates, listens,
// starts the background work, and shuts everything down in reverse order.
//
// A Server has three parts, each complete when its constructor returns. First, newOpened opens the files, storages,
// certificates and addresses. Then newMachinery makes the schemes, kinds and handlers from them, and answers nothing
// yet. Last, running runs both, and drains them. Each part that must be closed goes on one stack, closers.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/program/console"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
)

// Server is a server that has been built and listens, but does not answer before Run.
type Server struct {
	opened    *opened
	machinery *machinery
	running   *running
	closing   *closers
	// ended is set by the first call of Run, or of Close without Run.
	ended atomic.Bool
}

// New builds the server of a plan. On an error it leaves nothing open. No request is answered before Run.
func New(ctx context.Context, p *plan.Plan, newEnv definition.EnvFunc) (*Server, error) {
	closing := &closers{}
	s, err := build(ctx, p, newEnv, closing)
	if err != nil {
		return nil, closing.after(err)
	}
	return s, nil
}

func build(ctx context.Context, p *plan.Plan, newEnv definition.EnvFunc, closing *closers) (*Server, error) {
	opened, err := newOpened(ctx, p, newMode(p), closing)
	if err != nil {
		return nil, err
	}
	signals := newSignals()
	machinery, err := newMachinery(ctx, opened, signals, newEnv, closing)
	if err != nil {
		return nil, err
	}
	s := &Server{opened: opened, machinery: machinery, running: &running{readiness{opened, machinery, signals}}, closing: closing}
	if path := s.Kubeconfig(); path != "" {
		if err := opened.certs.WriteKubeconfig(path, p.Definition.Name, s.URL()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run serves until the context ends. Then it waits for requests in flight, ends watches and closes the server;
// after the shutdown timeout it cancels the remaining work. It calls ready once /readyz answers 200. Run works only
// once, and not after Close.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if s.ended.Swap(true) {
		return errors.New("the server was already run or closed: create a new one")
	}
	return errors.Join(s.running.run(ctx, ready), s.closing.close())
}

// Close releases the resources of a server that is not run. After Run, or when called again, it does nothing.
func (s *Server) Close() error {
	if s.ended.Swap(true) {
		return nil
	}
	return s.closing.close()
}

// Handler is the server's HTTP interface, with authentication and authorization. It answers usefully only while Run
// runs.
func (s *Server) Handler() http.Handler { return s.machinery.api.Embedded() }

// TLSConfig returns the TLS configuration for another program's listener that serves Handler.
func (s *Server) TLSConfig() (*tls.Config, error) {
	return s.opened.serving.Config(s.opened.mode.serving(), s.opened.mode.clientCA())
}

// IsAlive reports whether /livez answers 200. If it does not, only a restart helps.
func (s *Server) IsAlive(ctx context.Context) bool { return s.running.isOK(ctx, "/livez") }

// Served returns the verbs of a kind's main endpoint, and its subresources.
func (s *Server) Served(resource schema.GroupResource) (verbs, subresources []string) {
	return s.machinery.catalog.served(resource)
}

// Cluster describes in one line the cluster of the server and the optional permissions that are left out; empty for
// a standalone server.
func (s *Server) Cluster() string { return s.opened.mode.cluster() }

// URL returns the server's HTTPS URL for clients on this machine. A server that does not listen may have an
// external host name, of another program's listener, which URL returns instead; without a host name it returns an
// empty string.
func (s *Server) URL() string { return s.opened.listeners.url() }

// InsecureURL returns the server's plain HTTP URL for clients on this machine; empty if it does not listen.
func (s *Server) InsecureURL() string { return s.opened.listeners.insecureURL() }

// Socket returns the absolute path of the Unix socket; empty if the server has none.
func (s *Server) Socket() string { return s.opened.listeners.socketPath() }

// ConsoleURL returns the URL of the console; empty if it is not served or the server does not listen.
func (s *Server) ConsoleURL() string {
	if base := cmp.Or(s.URL(), s.InsecureURL()); base != "" && s.opened.plan.Console.Served {
		return base + console.Path
	}
	return ""
}

// SignInLink returns the URL of a new one-time link that signs the administrator in at the console; empty if the server
// accepts none or does not listen.
func (s *Server) SignInLink(ctx context.Context) (string, error) {
	users, base := s.opened.mode.signIn(), cmp.Or(s.URL(), s.InsecureURL())
	if users == nil || !users.HasLinks() || base == "" || !s.opened.mode.administers() {
		return "", nil
	}
	secret, err := users.NewLink(ctx, s.opened.certs.Administrator())
	if err != nil {
		return "", err
	}
	return base + console.SignInPath(secret), nil
}

// ClientConfig returns the administrator's client configuration over HTTPS. If the server does not listen or has no
// administrator, it returns a configuration over the loopback.
func (s *Server) ClientConfig() (*rest.Config, error) {
	if s.opened.listeners.secure == nil || !s.opened.mode.administers() {
		return s.opened.loopback.Config(), nil
	}
	return s.opened.certs.ClientConfig(s.URL())
}

// Kubeconfig returns the path of the administrator's kubeconfig; empty if the server writes none.
func (s *Server) Kubeconfig() string {
	p := s.opened.plan
	if p.Options.DataDir == "" || s.URL() == "" || !s.opened.mode.administers() || p.Options.Kubeconfig.None {
		return ""
	}
	path, err := filepath.Abs(p.Path("kubeconfig"))
	if err != nil {
		return p.Path("kubeconfig")
	}
	return path
}
