package annex

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
)

// Server defines an API server. It is only a description: any number of servers may be made from it.
type Server struct {
	// Name is a DNS label. It identifies the server in kubeconfigs and messages.
	Name string
	// Title is the title of the OpenAPI documents; the default is Name.
	Title string
	// Version is the version of the program, such as v1.2.0, which OpenAPI documents have. The default is the
	// version of the main module in the program's build information, or "unversioned". /version reports the
	// Kubernetes release whose API the server implements, followed by Name and Version, such as
	// v1.37.2+annex.shop.v1.2.0.
	Version string
	// OwnVersion makes /version report Version alone, with its major and minor numbers, for clients that compare
	// versions of this program. Version must be a semantic version then, such as v1.2.0. Clients of Kubernetes compare
	// the numbers with their own release: kubectl version warns of the difference, and a chart's kubeVersion may not
	// match. Servers with a ControlPlane cannot do so.
	OwnVersion bool
	// Groups are the served API groups, at least one unless there is a ControlPlane. The core group with its
	// namespaces is served in addition.
	Groups []Group
	// Controllers run in the server's process, or in a process of their own.
	Controllers []Controller
	// AdmissionPlugins admit, reject and may change the writes of all kinds, and review connections. The hooks of a
	// single kind are set with its builder.
	AdmissionPlugins []AdmissionPlugin
	// Handlers serve paths outside the API, behind the same authentication, authorization, limits and audit.
	Handlers []Handler
	// Console configures the look of the console, a web page.
	Console Console
	// Query configures the query API for all kinds.
	Query Query
	// Authorizer authorizes requests before Options.AuthorizationModes or, in an aggregated server, the cluster;
	// these decide if it has no opinion. It is not called for members of system:masters, nor for requests for
	// health and the version. It is called concurrently for every other request; nil leaves all decisions to the
	// others. An authorizer.RuleResolver also lets callers review their permissions in advance.
	Authorizer authorizer.Authorizer
	// Metrics are served with the server's own at /metrics, and by the verb controllers: for example, the metrics
	// of the controllers' library. A metric whose name the server or an earlier Gatherer has already is omitted.
	Metrics []prometheus.Gatherer
	// ControlPlane makes a standalone server serve the API of a whole cluster, see package controlplane. With nil,
	// the server has only Groups and the kinds that authentication, authorization and namespaces need.
	ControlPlane *ControlPlane
}

// ControlPlane is a control plane. Only New of package controlplane makes one.
type ControlPlane struct {
	//lint:ignore U1000 package definition reaches the field by its promoted method
	heldControlPlane
}

//lint:ignore U1000 the alias keeps the embedded field unexported
type heldControlPlane = definition.HeldControlPlane

// Group is an API group.
type Group struct {
	// Name is the group's DNS name, such as restaurant.wukong.com. In an aggregated server it must have a domain
	// that does not belong to Kubernetes. A standalone server may serve any group, for example apps, except
	// authentication.k8s.io, authorization.k8s.io and rbac.authorization.k8s.io. An empty name is the core group in
	// version v1; the kinds are added to the server's own kinds there, namespaces and service accounts.
	Name string
	// Kinds are the kinds in the group, at least one.
	Kinds []Kind
}

// Kind is a kind with all its versions, as KindOf builds it.
type Kind interface {
	kind() *define.Kind
}

// Definition is a compiled and checked server definition.
type Definition struct{ compiled }

type compiled = definition.Compiled

// Define compiles and checks the definition of a server, as New and package program do, without opening anything.
// The error is a *ConfigError that lists every mistake.
func Define(server Server) (*Definition, error) {
	compiled, err := server.define()
	if err != nil {
		return nil, err
	}
	d := definition.Definition{Server: compiled, NewEnv: newEnv}
	if server.ControlPlane != nil {
		d.ControlPlane = definition.Held(server.ControlPlane)
	}
	return &Definition{definition.Compile(d)}, nil
}

// define compiles and checks the definition. The error lists every mistake.
func (s Server) define() (*define.Server, error) {
	compiled := &define.Server{
		Name:       s.Name,
		Title:      s.Title,
		Version:    s.Version,
		OwnVersion: s.OwnVersion,
		Console:    s.Console.define(),
		Query:      define.Query(s.Query),
		Authorizer: s.Authorizer,
		Metrics:    s.Metrics,
	}
	if s.ControlPlane != nil {
		plane := definition.Held(s.ControlPlane)
		if plane == nil {
			return nil, config.Mistake(errors.New("server: ControlPlane is empty: create it with controlplane.New"))
		}
		compiled.Plane = plane.Plane()
	}
	for _, p := range s.AdmissionPlugins {
		compiled.AdmissionPlugins = append(compiled.AdmissionPlugins, p.define())
	}
	for _, h := range s.Handlers {
		compiled.Handlers = append(compiled.Handlers, h.define())
	}
	for _, c := range s.Controllers {
		controller := define.Controller{Name: c.Name}
		if c.Run != nil {
			controller.Run = func(ctx context.Context, env any) error { return c.Run(ctx, env.(*Env)) }
		}
		compiled.Controllers = append(compiled.Controllers, controller)
	}
	for _, g := range s.Groups {
		define.AddGroup(compiled, g.Name, g.Kinds)
	}
	return compiled, config.Mistake(define.Complete(compiled))
}
