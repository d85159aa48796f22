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

// Server defines an API server. It is a description: any number of servers may be
// made from it.
type Server struct {
	// Name is a DNS label. It names the server in kubeconfigs and messages.
	Name string
	// Title is what OpenAPI documents are titled; the default is Name.
	Title string
	// Version is the version of the program, such as v1.2.0. OpenAPI documents have it; the
	// default is that of the main module in the program's build information, or "unversioned".
	// /version names the release of Kubernetes that clients find here, and after it Name and
	// Version, such as v1.37.2+annex.shop.v1.2.0.
	Version string
	// Groups are the API groups served, at least one unless there is a ControlPlane. The core group, with
	// namespaces in it, is served besides.
	Groups []Group
	// Controllers run beside the requests, or in a process of their own.
	Controllers []Controller
	// AdmissionPlugins decide on the writes of all kinds and on connections, and may change what is
	// written. A kind's own hooks are said with its builder.
	AdmissionPlugins []AdmissionPlugin
	// Handlers answer paths beside the API, behind the same authentication, authorization,
	// limits and audit.
	Handlers []Handler
	// Console is how the console looks, a page for people.
	Console Console
	// Query says where queries are answered, for every kind.
	Query Query
	// Authorizer decides what callers may do, before Options.AuthorizationModes or the cluster
	// of an aggregated server does, to which it leaves what it has no opinion on. Members of
	// system:masters, and requests for health and the version, are not its business. It is
	// called concurrently, for every request; nil leaves everything to the others. One that
	// is also an authorizer.RuleResolver tells callers in advance what they may do.
	Authorizer authorizer.Authorizer
	// Metrics are shown with the server's own at /metrics, and by the verb controllers: those of the
	// library that controllers are made with, say. A metric of a name that the server has itself, or
	// that came before, is left out.
	Metrics []prometheus.Gatherer
	// ControlPlane makes a server that stands alone all that a cluster's API is, see package
	// controlplane; nil has no more than Groups and what callers, rights and namespaces need.
	ControlPlane *ControlPlane
}

// ControlPlane is a control plane. Only New of package controlplane makes one.
type ControlPlane struct{ heldControlPlane }

type heldControlPlane = definition.HeldControlPlane

// Group is an API group.
type Group struct {
	// Name is the group's DNS name, such as restaurant.wukong.com. Behind a cluster it has a
	// domain that is not Kubernetes'. A server that stands alone may serve any group but
	// authentication.k8s.io, authorization.k8s.io and rbac.authorization.k8s.io: apps, say. Empty
	// is the core group, in version v1, to which kinds are added beside the server's own,
	// namespaces and service accounts.
	Name string
	// Kinds are the kinds in the group, at least one.
	Kinds []Kind
}

// Kind is a kind in all its versions, as KindOf builds it.
type Kind interface {
	kind() *define.Kind
}

// Definition is a server whose definition has been compiled and checked.
type Definition struct{ compiled }

type compiled = definition.Compiled

// Define compiles and checks the definition of a server, as New and package program do, and opens
// nothing. The error is a *ConfigError that lists every mistake.
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
