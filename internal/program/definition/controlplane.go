package definition

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/upstream"
)

// ControlPlane turns a standalone server into the API of a whole cluster. Package controlplane has the only
// implementation, so that only servers that import it link it.
type ControlPlane interface {
	// Plane returns the kinds and settings that the control plane adds to a definition.
	Plane() *define.Plane
	// With returns the control plane with the operator's options. It returns an error for a wrong RuntimeConfig.
	With(define.PlaneOptions) (ControlPlane, error)
	// Open opens the control plane of a server that is built but does not run yet.
	Open(Host) (*Opened, error)
}

// HeldControlPlane holds a ControlPlane for the exported type of package annex, as Compiled does a Definition.
type HeldControlPlane struct{ controlPlane ControlPlane }

func (h *HeldControlPlane) held() *HeldControlPlane { return h }

// Hold puts a control plane into a holder.
func Hold(holder interface{ held() *HeldControlPlane }, controlPlane ControlPlane) {
	holder.held().controlPlane = controlPlane
}

// Held returns the control plane in a holder, nil if Hold has put none there.
func Held(holder interface{ held() *HeldControlPlane }) ControlPlane {
	return holder.held().controlPlane
}

// Host is the interface of a server to its control plane.
type Host struct {
	// Name is the definition's name.
	Name string
	// Storage opens storage for resources that the definition does not have, encoded by the codec. Objects can be
	// created only in existing namespaces.
	Storage func(codec runtime.Codec) generic.RESTOptionsGetter
	// Foreign opens storage for the kinds of an extension, encoded by the codec of each resource, in the version beside the codec.
	// Objects can be created only in existing namespaces.
	Foreign func(codec func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)) generic.RESTOptionsGetter
	// Client has all permissions. Its requests block until the server runs.
	Client *rest.Config
	// Groups are the names of the API groups that the server itself serves. Versions are their served versions, the
	// preferred version of each group first.
	Groups   []string
	Versions []schema.GroupVersion
	// Shared is set if other servers may use the same storage.
	Shared bool
	// Admission are the names of the enabled admission plugins.
	Admission  []string
	Authorizer authorizer.Authorizer
	Version    compatibility.EffectiveVersion
	// Front authenticates this server and its callers to aggregated servers.
	Front Front
	// Stopped is closed when the server accepts no more requests.
	Stopped <-chan struct{}
}

// Front holds the certificates by which aggregated servers authenticate this server and its callers.
type Front struct {
	// Proxy is the client certificate that the server presents to aggregated servers, and the authority that
	// verifies it.
	Proxy *certs.FrontProxy
	// UserCA verifies the client certificates of the server's callers.
	UserCA dynamiccertificates.CAContentProvider
}

// Opened is the control plane of one server.
type Opened struct {
	// Delegation serves the API groups that the definition does not have.
	Delegation *upstream.Delegation
	// Aggregation proxies the API groups of aggregated servers; nil if there is no aggregation.
	Aggregation upstream.Aggregation
	// Foreign are the API groups of an extension; nil if there is none.
	Foreign *upstream.Foreign
	// Admission are plugins that run after the definition's plugins and before the hooks of kinds.
	Admission []admit.Plugin
	// Metrics are added to the server's metrics.
	Metrics []prometheus.Gatherer
	// Run keeps the state of delegation, aggregation and admission current until the context ends.
	Run func(ctx context.Context) error
	// Ready returns the reason why the server is not ready yet, or nil if it is. A nil Ready means that the control
	// plane is always ready. It may be called concurrently.
	Ready func() error
}
