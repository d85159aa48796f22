package upstream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/annexapi/annex/internal/server/query"
)

// Delegation is a server behind this one, which answers what this one has no group for.
type Delegation struct {
	// Scheme has the types of its own groups, which OpenAPI names.
	Scheme *runtime.Scheme
	// Groups are the names of these.
	Groups []string
	// New builds the server. Both share their configuration, but for the checks of /readyz.
	New func(config server.Config) (*Delegate, error)
}

// Delegate is a server behind another one.
type Delegate struct {
	Server *server.GenericAPIServer
	// ReadFirst returns when the caches are filled that the server's hooks wait for, which look
	// at them only every 100 ms, or when the context ends. The caches are kept current until then.
	ReadFirst func(ctx context.Context)
	// Join is called once with the server in front, when its documents are there and before
	// the background work of either begins.
	Join func(front *server.GenericAPIServer) error
	// Queried returns the resources that can be queried; nil is none.
	Queried func() []*query.Resource

	groups []string
}

// queried returns the resources behind that can be queried.
func (d *Delegate) queried() []*query.Resource {
	if d == nil || d.Queried == nil {
		return nil
	}
	return d.Queried()
}

func (d *Delegation) schemes() []*runtime.Scheme {
	if d == nil {
		return nil
	}
	return []*runtime.Scheme{d.Scheme}
}

// build returns nil if there is no delegation.
func (d *Delegation) build(front *server.Config, ready []healthz.HealthChecker) (*Delegate, error) {
	if d == nil {
		return nil, nil
	}
	// Both tell of their groups in one document.
	front.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager(strings.TrimPrefix(server.APIGroupPrefix, "/"))
	config := *front
	config.PostStartHooks = map[string]server.PostStartHookConfigEntry{}
	config.HealthzChecks, config.LivezChecks = slices.Clone(config.HealthzChecks), slices.Clone(config.LivezChecks)
	config.ReadyzChecks = slices.Clone(config.ReadyzChecks[:len(config.ReadyzChecks)-len(ready)])
	// The one in front has the documents of both, the filters, and what is beside the API.
	config.SkipOpenAPIInstallation = true
	config.BuildHandlerChainFunc = func(handler http.Handler, _ *server.Config) http.Handler { return handler }
	config.EnableIndex, config.EnableProfiling = false, false
	delegate, err := d.New(config)
	if err != nil {
		return nil, fmt.Errorf("build the API server behind: %w", err)
	}
	delegate.groups = d.Groups
	return delegate, nil
}

func (d *Delegate) target() server.DelegationTarget {
	if d == nil {
		return server.NewEmptyDelegate()
	}
	return d.Server
}

func (d *Delegate) readFirst(ctx context.Context) {
	if d != nil {
		d.ReadFirst(ctx)
	}
}

// join prepares both servers. Nothing is installed in them afterwards.
func (d *Delegate) join(front *server.GenericAPIServer, v2 *common.Config, v3 *openAPIv3Builder) error {
	prepare := func() error {
		front.PrepareRun()
		installOpenAPIv2(front, v2)
		return installOpenAPIv3(front, v3)
	}
	if d == nil {
		return prepare()
	}
	d.Server.Handler.NonGoRestfulMux.NotFoundHandler(http.HandlerFunc(http.NotFound))
	front.Handler.NonGoRestfulMux.NotFoundHandler(d.Server.UnprotectedHandler())
	// Routes that are in front are in the documents, which are made of these.
	for _, service := range d.Server.Handler.GoRestfulContainer.RegisteredWebServices() {
		for _, group := range d.groups {
			if root := server.APIGroupPrefix + "/" + group; service.RootPath() == root || strings.HasPrefix(service.RootPath(), root+"/") {
				front.Handler.GoRestfulContainer.Add(service)
			}
		}
	}
	if err := prepare(); err != nil {
		return err
	}
	return d.Join(front)
}
