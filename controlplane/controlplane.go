// Package controlplane makes a standalone server serve a whole cluster's API, without nodes and workloads. It serves
// CustomResourceDefinitions and the custom resources that they define, and the kinds that every cluster has. It runs
// garbage collection, and admission by webhooks and policies.
//
// It is a separate package because of its many dependencies: servers that do not import it stay small.
package controlplane

import (
	"fmt"
	"io/fs"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/controlplane/builtin"
	"github.com/annexapi/annex/internal/controlplane/crds"
	"github.com/annexapi/annex/internal/controlplane/policies"
	"github.com/annexapi/annex/internal/controlplane/quota"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/loopback"
)

// Options configure a control plane.
type Options struct {
	// Without names kinds and groups to leave out: kinds by their resources, such as configmaps and
	// leases.coordination.k8s.io, and groups by their names, such as admissionregistration.k8s.io. Webhooks, policies
	// and quotas whose kinds are left out are not enforced.
	Without []string
	// EventTTL is how long an event is kept after its last write, in whole seconds. 0 means an hour, and a negative
	// value keeps events for ever.
	EventTTL time.Duration
	// CRDs are directories whose files *.yaml, *.yml and *.json hold CustomResourceDefinitions. The server applies
	// them at start, by forced server-side apply, and again when the files change. It is not ready until their
	// objects are served. A file that is invalid at start is an error of annex.New; later, the error is logged and
	// nothing changes. Removing a definition from a file does not delete it. Paths are relative to the working
	// directory.
	CRDs []string
	// CRDFiles is a directory of such files that comes with the program, for example an embed.FS; nil means none.
	// annex.New reads the files, but not those of nested directories.
	CRDFiles fs.FS
	// Extension adds the kinds of another project, for example workloads.New of module workloads. Nil adds none.
	Extension *Extension
	// ExtensionOff serves the kinds of Extension only if the operator turns them on, by
	// Options.ControlPlane.Workloads.
	ExtensionOff bool
}

// Extension adds the kinds of another project to a control plane. Any number of control planes may share it.
type Extension struct {
	//lint:ignore U1000 package definition reaches the field by its promoted method
	heldExtension
}

//lint:ignore U1000 the alias keeps the embedded field unexported
type heldExtension = definition.HeldExtension

// New returns the control plane for annex.Server. Any number of servers may share it. annex.New reports mistakes in
// the options.
func New(options Options) *annex.ControlPlane {
	controlPlane := &annex.ControlPlane{}
	definition.Hold(controlPlane, plane{
		kinds: builtin.Options{Without: options.Without, EventTTL: options.EventTTL}, crds: options.CRDs, brought: options.CRDFiles,
		creates: &creates{servers: map[string]*quota.Creates{}}, extension: extensionOf(options.Extension),
		extends: options.Extension != nil && !options.ExtensionOff,
	})
	return controlPlane
}

type plane struct {
	kinds   builtin.Options
	crds    []string // directories
	brought fs.FS    // a further directory; nil means none
	creates *creates
	// extension is nil if there is none.
	extension definition.Extension
	// extends is set if the extension is on.
	extends bool
}

func extensionOf(e *Extension) definition.Extension {
	if e == nil {
		return nil
	}
	return definition.ExtensionOf(e)
}

var _ definition.ControlPlane = plane{}

// Plane implements definition.ControlPlane.
func (p plane) Plane() *define.Plane {
	if _, err := p.kinds.Groups(); err != nil {
		return &define.Plane{Mistake: err}
	}
	all, err := p.declaredControllers()
	if err != nil {
		return &define.Plane{Mistake: err}
	}
	on, off := p.admissionPlugins()
	plane := &define.Plane{Groups: p.groups, Controllers: all, AdmissionPlugins: on, OffAdmissionPlugins: off}
	if p.extends {
		plane.Roles = p.extension.Roles
	}
	return plane
}

func (p plane) groups() []define.Group {
	groups, _ := p.kinds.Groups() // Plane has reported a mistake
	if !p.extends {
		return groups
	}
	replaced := p.extension.Replaces()
	for i := range groups {
		groups[i].Kinds = slices.DeleteFunc(groups[i].Kinds, func(k *define.Kind) bool {
			return slices.Contains(replaced, schema.GroupResource{Group: groups[i].Name, Resource: k.Resource})
		})
	}
	return slices.DeleteFunc(groups, func(g define.Group) bool { return len(g.Kinds) == 0 })
}

// Open implements definition.ControlPlane.
func (p plane) Open(server definition.Host) (*definition.Opened, error) {
	services, err := followServices(server.Client, p.served())
	if err != nil {
		return nil, err
	}
	self, resolver := loopback.AsService(server.Client), webhooks{services.resolver}
	decided, err := policies.New(policies.Config{
		Server:     server.Name,
		Client:     server.Client,
		Self:       self,
		Enabled:    server.Admission,
		Authorizer: server.Authorizer,
		Version:    server.Version,
		Stopped:    server.Stopped,
		Resolver:   resolver,
		Complete:   builtin.Complete,
	})
	if err != nil {
		return nil, err
	}
	opened := &definition.Opened{Run: decided.Run}
	alongside(opened, services.run)
	if p.served()(corev1.Resource("configmaps")) {
		addAuthentication(opened, server)
	}
	extended, err := p.openExtension(server)
	if err != nil {
		return nil, err
	}
	local, err := addAPIServices(opened, server, extended.Foreign.Versions(), services)
	if err != nil {
		return nil, err
	}
	opened.Delegation = crds.Delegation(
		crds.Config{Storage: server.Storage, Client: server.Client, Self: self, Shared: server.Shared, Follower: local, Resolver: resolver},
	)
	opened.Admission = append(decided.Plugins(), decided.Params(), admit.NewPlugin("CustomResourceDefinitions", crds.Admission(server.Groups)))
	if len(p.crds) > 0 || p.brought != nil {
		manifests, err := crds.NewManifests(p.crds, p.brought, server.Client)
		if err != nil {
			return nil, err
		}
		alsoReady(opened, manifests.Ready)
		alongside(opened, manifests.Run)
	}
	addExtension(opened, extended)
	return opened, p.addQuotas(opened, server)
}

// openExtension opens the extension. Without one, the result is empty.
func (p plane) openExtension(server definition.Host) (*definition.Extended, error) {
	if !p.extends {
		return &definition.Extended{}, nil
	}
	extended, err := p.extension.Open(server)
	if err != nil {
		return nil, fmt.Errorf("extension of the control plane: %w", err)
	}
	return extended, nil
}

// addExtension adds the parts of an opened extension to an opened control plane.
func addExtension(opened *definition.Opened, extended *definition.Extended) {
	opened.Foreign = extended.Foreign
	opened.Admission = slices.Concat(extended.Admission, opened.Admission)
	if extended.Run != nil {
		alongside(opened, extended.Run)
	}
	if extended.Ready != nil {
		alsoReady(opened, extended.Ready)
	}
}

// alsoReady makes the control plane ready only if a check returns nil, too.
func alsoReady(opened *definition.Opened, check func() error) {
	ready := opened.Ready
	opened.Ready = func() error {
		if err := check(); err != nil || ready == nil {
			return err
		}
		return ready()
	}
}
