package serve

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/registry"
)

// mode has all differences between a standalone and an aggregated server: authentication, authorization, the source
// of namespaces, and further conditions of readiness. The rest of the package does not know the mode.
//
// A mode keeps nothing that it opens. Each step of a server's construction returns the next part of it, with the methods
// that are possible from then on: modeFiles, modeStorage, modeService.
type mode interface {
	// certificates sets the options for opening the certificates.
	certificates(options *certs.Options)
	// open opens files and creates clients. It sends nothing over the network. Its background work ends with the
	// server, not with ctx.
	open(ctx context.Context, b base) (modeFiles, error)
}

// base has the open parts of a server on which its mode builds.
type base struct {
	certs    *certs.Certs
	loopback *loopback.Loopback
	storages Storages
	closing  *closers
}

// modeFiles are the open files and clients of a mode.
type modeFiles interface {
	// types returns the functions that register the server's built-in kinds.
	types() []func(scheme *runtime.Scheme, aliases bool) error
	// store opens the storage of these kinds.
	store(in model, closing *closers) (modeStorage, error)
	// collectsGarbage reports whether a garbage collector implements the propagation policies of deletions.
	collectsGarbage() bool

	// serving returns the serving certificate.
	serving() dynamiccertificates.CertKeyContentProvider
	// clientCA returns the authorities that verify client certificates.
	clientCA() dynamiccertificates.CAContentProvider
	// administers reports whether the server's certificate authority creates an administrator.
	administers() bool
	// signIn returns the ways to sign in; nil if users cannot sign in.
	signIn() *login.Login
	// cluster describes in one line the cluster of the server and the optional permissions that are left out; empty
	// for a standalone server.
	cluster() string

	// background runs the background work that requests in flight need, until the context ends.
	background(ctx context.Context)
	// blocked returns the missing condition outside of the server that keeps it from becoming ready; nil if there
	// is none.
	blocked() error
	// lead calls run while this replica is the leader, which runs the controllers. It returns when the context
	// ends.
	lead(ctx context.Context, run func(context.Context))
	// leave is called when the server begins to drain, before anything ends.
	leave(ctx context.Context)
}

// modeStorage has the storage of a mode's built-in kinds.
type modeStorage interface {
	// guard wraps a storage to permit creates in existing namespaces only.
	guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter
	// namespaceNames returns the names of all namespaces. A query of a caller who may only read some namespaces
	// covers at most mostNamespaces of them.
	namespaceNames(ctx context.Context) ([]string, error)
	mostNamespaces() int
	// configure sets authentication, authorization and admission.
	configure(config *upstream.Config, own plugins) (modeService, error)
}

// modeService is the part of a mode that a configured server has.
type modeService interface {
	// editors returns the editors of files by key prefix. A prefix has several editors if its objects are served in
	// several groups.
	editors(kinds []*registry.Kind, schemes *convert.Machinery) map[string][]*registry.Editor
	// checks returns the mode's checks of /readyz.
	checks() []healthz.HealthChecker
	metrics() []prometheus.Collector
	// followers returns clients of the server itself that keep current what its answers depend on, until requests are
	// rejected. Each returns when its context ends, or with an error that ends the server.
	followers() []func(ctx context.Context) error
	// controllers returns further clients, which end as soon as the server drains. readyBut returns the error of the first
	// failing check of /readyz other than the named one.
	controllers(readyBut func(check string) error) []func(ctx context.Context) error
	// initialize creates the initial objects, such as the namespace default, once the storages are connected.
	initialize(ctx context.Context) error
}

// newMode returns the implementation of the plan's mode.
func newMode(p *plan.Plan) mode {
	switch p.Mode {
	case plan.SelfCertified:
		return selfCertified{aggregated{p}}
	case plan.Aggregated:
		return aggregated{p}
	case plan.ControlPlane:
		return controlPlane{standalone{plan: p, system: coreapi.SystemNamespaces()}}
	default:
		return standalone{plan: p}
	}
}
