package serve

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/registry"
)

// mode is all that differs between a server that stands alone and one that is part of a
// cluster: authentication, authorization, the source of namespaces, and what besides the
// server itself is needed to be ready. The rest of the package does not know which it is.
//
// Methods are called in the order of their groups.
type mode interface {
	// certificates says what the certificates on disk are for.
	certificates(options *certs.Options)
	// open opens files and makes clients of a server whose certificates are open and
	// which has its listeners and its loopback. It asks nothing over the network. What it begins ends with the server, not with ctx.
	open(ctx context.Context, s *Server) error
	// types registers the kinds that the server has by itself.
	types() []func(scheme *runtime.Scheme, aliases bool) error
	// store opens the storage of those kinds.
	store(s *Server) error

	// guard lets objects be created only in namespaces that are there.
	guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter
	// collectsGarbage tells whether a garbage collector carries out the propagation
	// policies of deletions.
	collectsGarbage() bool
	// configure says who callers are, what they may do, and which writes may happen.
	configure(config *upstream.Config, own plugins) error
	// editors carry out edits of files, by the beginning of the keys. There are several
	// for objects that are of several groups.
	editors(s *Server) map[string][]*registry.Editor

	// namespaceNames returns the namespaces that there are, of which mostNamespaces may be in the union
	// that a caller's query is of.
	namespaceNames(ctx context.Context) ([]string, error)
	mostNamespaces() int

	// serving is the certificate that the server shows.
	serving() dynamiccertificates.CertKeyContentProvider
	// clientCA is what client certificates are verified against.
	clientCA() dynamiccertificates.CAContentProvider
	// administers tells whether the server's own authority makes an administrator.
	administers() bool
	// checks are those of /readyz, beside the server's own.
	checks() []healthz.HealthChecker
	metrics() []prometheus.Collector

	// background runs, until the context ends, what requests in flight need.
	background(ctx context.Context)
	// controllers are clients of the server itself. Each returns when its context ends, or
	// with an error that ends the server.
	controllers() []func(ctx context.Context) error
	// initialize creates the objects that there are from the start, such as the namespace default,
	// once the storages are connected.
	initialize(ctx context.Context) error
	// blocked is why the server cannot be ready whatever it does, nil if nothing outside
	// of it is missing.
	blocked() error
	// lead calls run while this replica is the leader, the one that runs controllers. It
	// returns when the context ends.
	lead(ctx context.Context, run func(context.Context))
	// leave is called when the server begins to drain, before anything ends.
	leave(ctx context.Context)

	// cluster says in one line which cluster the server is part of, and what of it is left
	// out; empty if it is part of none.
	cluster() string
}

// newMode makes the mode that the plan has chosen.
func newMode(p *plan.Plan) mode {
	switch p.Mode {
	case plan.SelfCertified:
		return &selfCertified{aggregated: &aggregated{plan: p}}
	case plan.Aggregated:
		return &aggregated{plan: p}
	case plan.ControlPlane:
		return &controlPlane{standalone: &standalone{plan: p, system: coreapi.SystemNamespaces()}}
	default:
		return &standalone{plan: p}
	}
}
