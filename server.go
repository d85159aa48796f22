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

// Server defines an API server. It is a description: any number of servers may be made from it.
type Server struct {
	// Name is a DNS label. It names the server in kubeconfigs and messages.
	Name string
	// Title is the title of OpenAPI documents; the default is Name.
	Title string
	// Version is the version of the program, such as v1.2.0, which OpenAPI documents contain. The default is the
	// version of the main module in the program's build information, or "unversioned". /version returns the Kubernetes
	// release with which the server is compatible, followed by Name and Version, such as v1.37.2+annex.shop.v1.2.0.
	Version string
	// Groups are the served API groups, at least one unless ControlPlane is set. The server also serves the core
	// group, with namespaces.
	Groups []Group
	// Controllers run beside the requests, or in a process of their own.
	Controllers []Controller
	// AdmissionPlugins decide on the writes of all kinds and on connections, and may change the written objects. The
	// builder of a kind adds hooks for that kind.
	AdmissionPlugins []AdmissionPlugin
	// Handlers answer paths beside the API, behind the same authentication, authorization, limits and audit.
	Handlers []Handler
	// Console configures the console, a page for people.
	Console Console
	// Query configures queries, for every kind.
	Query Query
	// Authorizer decides before Options.AuthorizationModes, or before the cluster of an aggregated server. Both decide
	// only on requests about which it has no opinion. It is not asked about members of system:masters, and about
	// requests for health and the version. It is called concurrently, for every request. Nil has no opinion. An
	// authorizer that also implements authorizer.RuleResolver can list the rules of a caller in advance.
	Authorizer authorizer.Authorizer
	// Metrics are served with the server's own at /metrics, and by the verb controllers: the metrics of a controller
	// library, for example. A metric with a name that the server or an earlier entry uses is omitted.
	Metrics []prometheus.Gatherer
	// ControlPlane adds the API of a whole cluster to a standalone server, see package controlplane. Nil serves only
	// Groups, and the kinds for callers, rights and namespaces.
	ControlPlane *ControlPlane
}

// ControlPlane is a control plane. Only New of package controlplane makes one.
type ControlPlane struct{ heldControlPlane }

type heldControlPlane = definition.HeldControlPlane

// Group is an API group.
type Group struct {
	// Name is the group's DNS name, such as restaurant.wukong.com. The group of an aggregated server must have a domain
	// other than Kubernetes'. A standalone server may serve any group, such as apps, except authentication.k8s.io,
	// authorization.k8s.io and rbac.authorization.k8s.io. Empty is the core group, in version v1: its kinds are added
	// to the server's own, namespaces and service accounts.
	Name string
	// Kinds are the kinds in the group, at least one.
	Kinds []Kind
}

// Kind is a kind in all its versions. KindOf builds one.
type Kind interface {
	kind() *define.Kind
}

// Definition is a server whose definition has been compiled and checked.
type Definition struct{ compiled }

type compiled = definition.Compiled

// Define compiles and checks the definition of a server, as New and package program do. It opens nothing. The error is
// a *ConfigError that lists every mistake.
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

// define compiles and checks the definition. The error names every mistake.
func (s Server) define() (*define.Server, error) {
	compiled := &define.Server{
		Name:       s.Name,
		Title:      s.Title,
		Version:    s.Version,
		Console:    s.Console.define(),
		Query:      define.Query(s.Query),
		Authorizer: s.Authorizer,
		Metrics:    s.Metrics,
	}
	if s.ControlPlane != nil {
		plane := definition.Held(s.ControlPlane)
		if plane == nil {
			return nil, config.Mistake(errors.New("server: ControlPlane is empty: controlplane.New makes one"))
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
