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

// ControlPlane makes a server that stands alone a whole cluster's API. Package controlplane has the only
// implementation, so that only servers that import it link it.
type ControlPlane interface {
	// Plane returns what the control plane adds to a definition.
	Plane() *define.Plane
	// With returns the control plane with the operator's options. An error is about the
	// RuntimeConfig.
	With(define.PlaneOptions) (ControlPlane, error)
	// Open opens the control plane of a server that is built, but does not run yet.
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

// Host is a server as its control plane knows it.
type Host struct {
	// Name is that of the definition.
	Name string
	// Storage opens the storage of resources that the definition does not have, in the form
	// that a codec writes. Objects are created only in namespaces that are there.
	Storage func(codec runtime.Codec) generic.RESTOptionsGetter
	// Client has all rights. Its requests wait until the server runs.
	Client *rest.Config
	// Groups are the names of those that the server has itself, and Versions what it serves of
	// them, the preferred version of each group first.
	Groups   []string
	Versions []schema.GroupVersion
	// Shared says that other servers may be over the same storage.
	Shared bool
	// Admission are the names of the admission plugins that run.
	Admission  []string
	Authorizer authorizer.Authorizer
	Version    compatibility.EffectiveVersion
	// Front is how servers behind this one know it and its callers.
	Front Front
	// Stopped is closed when no more requests come.
	Stopped <-chan struct{}
}

// Front is what the certificates of a server are to those behind it.
type Front struct {
	// Proxy is the certificate that the server shows to them, and what they verify it against.
	Proxy *certs.FrontProxy
	// UserCA is what the server verifies the certificates of its callers against.
	UserCA dynamiccertificates.CAContentProvider
}

// Opened is the control plane of one server.
type Opened struct {
	// Delegation answers what the definition's groups do not.
	Delegation *upstream.Delegation
	// Aggregation answers for the groups of servers behind; nil is for none.
	Aggregation upstream.Aggregation
	// Admission are plugins that decide after the definition's, and before the hooks of kinds.
	Admission []admit.Plugin
	// Metrics are those that the control plane adds to the server's.
	Metrics []prometheus.Gatherer
	// Run follows what they decide by until the context ends.
	Run func(ctx context.Context) error
	// Ready returns why the server must not be called ready yet; nil is never. It may be called
	// concurrently.
	Ready func() error
}
