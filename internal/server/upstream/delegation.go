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

// Delegation describes a server behind this one, which answers requests for groups that this server lacks.
type Delegation struct {
	// Scheme holds the types of the delegate's own groups, which OpenAPI names.
	Scheme *runtime.Scheme
	// Groups are the names of these groups.
	Groups []string
	// New builds the server. It shares the configuration of the server in front, except for the checks of /readyz.
	New func(config server.Config) (*Delegate, error)
}

// Delegate is a server behind another server.
type Delegate struct {
	Server *server.GenericAPIServer
	// ReadFirst returns when the caches that the server's hooks wait for are filled, or when the context ends. The
	// hooks themselves look at the caches only every 100 ms. The caches are kept up to date until the context ends.
	ReadFirst func(ctx context.Context)
	// Join is called once with the server in front, after both have their documents and before either begins its
	// background work.
	Join func(front *server.GenericAPIServer) error
	// Queried returns the resources that can be queried. A nil function means none.
	Queried func() []*query.Resource

	groups []string
}

// queried returns the delegate's resources that can be queried.
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

// build builds the delegate. It returns nil if d is nil.
func (d *Delegation) build(front *server.Config, ready []healthz.HealthChecker) (*Delegate, error) {
	if d == nil {
		return nil, nil
	}
	// Both servers publish their groups in one document of aggregated discovery.
	front.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager(strings.TrimPrefix(server.APIGroupPrefix, "/"))
	config := *front
	config.PostStartHooks = map[string]server.PostStartHookConfigEntry{}
	config.HealthzChecks, config.LivezChecks = slices.Clone(config.HealthzChecks), slices.Clone(config.LivezChecks)
	config.ReadyzChecks = slices.Clone(config.ReadyzChecks[:len(config.ReadyzChecks)-len(ready)])
	// The server in front has the documents of both, the filters, and the handlers beside the API.
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

// waitForHooks returns when the hooks that wait for the caches of readFirst have seen them, which takes 100 ms at most.
func (d *Delegate) waitForHooks() {
	if d == nil {
		return
	}
	for _, done := range d.Server.MuxAndDiscoveryCompleteSignals() {
		<-done
	}
}

// join prepares both servers. Nothing can be installed in them afterwards.
func (d *Delegate) join(front *server.GenericAPIServer, v2 *common.Config, v3 *openAPIv3Builder, later *laterRoutes) error {
	prepare := func() error {
		front.PrepareRun()
		installOpenAPIv2(front, v2, later)
		return installOpenAPIv3(front, v3, later)
	}
	if d == nil {
		return prepare()
	}
	d.Server.Handler.NonGoRestfulMux.NotFoundHandler(http.HandlerFunc(http.NotFound))
	front.Handler.NonGoRestfulMux.NotFoundHandler(d.Server.UnprotectedHandler())
	// The documents are built from the routes of the server in front, so the delegate's routes have to be added there
	// first.
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
