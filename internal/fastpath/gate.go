package fastpath

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/registry"
)

// Config is the part of a server's configuration by which the gate decides.
type Config struct {
	// Off sends all requests to upstream's handlers.
	Off bool
	// Audited reports whether an audit policy may record the bodies of answers.
	Audited bool
	// Traced reports whether spans of requests are recorded.
	Traced bool
	// Pretty reports whether a client gets indented JSON; nil is for none.
	Pretty func(*http.Request) bool
}

// Gate decides which requests are answered without upstream's handlers. Its methods may be called concurrently, but for Add.
type Gate struct {
	config  Config
	kinds   map[schema.GroupVersionResource]*Kind
	metrics *gateMetrics
}

// New returns a gate that lets nothing through yet.
func New(config Config) *Gate {
	return &Gate{config: config, kinds: map[schema.GroupVersionResource]*Kind{}, metrics: newMetrics()}
}

// An Answerer answers the requests of a kind on some routes.
type Answerer interface {
	// Answer answers a request, or returns the reason for which upstream's handlers have to. Then nothing has been written
	// or stored. It calls Decision.CountAnswer before it writes.
	//
	// On the route Items, Answer itself calls next, upstream's handlers, to fill in the items of their list. If their
	// response has no items, Answer calls Decision.Decline and returns no reason.
	Answer(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) Reason
}

// Kind is the main endpoint of a kind in a version.
type Kind struct {
	Resource schema.GroupVersionResource
	// Protobuf reports whether the version is encoded as protobuf.
	Protobuf bool
	// Reads answers gets, lists and watches, Writes writes of one object. Nil leaves them to upstream.
	Reads, Writes Answerer

	path       Path
	routes     Route
	deprecated bool
}

// Add lets the requests of a kind in a version through, if the server stores the objects of the kind itself. It must not be called once the
// server answers.
func (g *Gate) Add(k *define.Kind, v *define.Version, storage rest.Storage, reads, writes Answerer) {
	if !k.IsStored() {
		return
	}
	added := &Kind{
		Resource:   v.GroupVersion.WithResource(k.Resource),
		Protobuf:   v.SpeaksProtobuf(),
		Reads:      reads,
		Writes:     writes,
		path:       PathOf(v.GroupVersion, !k.ClusterScoped),
		deprecated: deprecation.IsDeprecated(v.New(), 0, 0),
	}
	can := func(route Route, by Answerer, implements bool) {
		if by != nil && implements {
			added.routes |= route
		}
	}
	_, gets := storage.(rest.Getter)
	_, watches := storage.(rest.Watcher)
	_, creates := storage.(rest.Creater)
	_, updates := storage.(rest.Updater)
	_, patches := storage.(rest.Patcher)
	_, deletes := storage.(rest.GracefulDeleter)
	can(Get|List|Items, reads, gets)
	can(Watch, reads, gets && watches)
	can(Create, writes, creates)
	can(Update, writes, updates)
	can(Patch, writes, patches)
	can(Delete, writes, deletes)
	g.kinds[added.Resource] = added
}

// Wrap answers the requests that the gate lets through, and gives all others to the next handler.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := g.Decide(r)
		reason := d.Reason
		switch {
		case d.Route == Upstream:
		case d.Route&writes != 0:
			reason = d.Kind.Writes.Answer(w, r, d, next)
		default:
			reason = d.Kind.Reads.Answer(w, r, d, next)
		}
		if reason == "" {
			return
		}
		d.Decline(reason)
		if d.verb == Watch && d.Kind != nil && negotiate(r.Header.Get("Accept"), true, d.Kind.Protobuf) == JSON {
			// Upstream's handler encodes each event as other watches of the version do.
			r = r.WithContext(registry.WithRememberedEvents(r.Context()))
		}
		next.ServeHTTP(w, r)
	})
}
