package aggregate

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	coreinformers "k8s.io/client-go/informers/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	remotestatus "k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex/internal/base/await"
)

const (
	// checkers is the number of servers whose availability is checked concurrently.
	checkers = 5
	// prefix is the path of all groups except the core group.
	prefix = "/apis"
)

// Config is the interface of the server in front for the aggregation of other servers.
type Config struct {
	// Services is an informer that the caller starts.
	Services coreinformers.ServiceInformer
	// Resolver finds the servers that APIServices name.
	Resolver apiserver.ServiceResolver
	// Own are the groups of the server itself.
	Own []string
	// Client returns the client certificate and key for requests to other servers.
	Client func() (cert, key []byte)
	// Stopped is closed when no more requests arrive.
	Stopped <-chan struct{}
}

// Aggregation forwards requests for groups of other servers, according to the APIServices that name a service. Its
// exported methods are mostly called by upstream's controllers.
type Aggregation struct {
	config    Config
	own       []*apiregistrationv1.APIService
	services  informers.APIServiceInformer
	register  *apiserver.APIServiceRegistrationController
	available *remotestatus.AvailableConditionController
	// registered is closed when all APIServices that exist at the start are in known.
	registered chan struct{}
	known      atomic.Pointer[servers]
	documents  atomic.Pointer[documents]
	askings    *fetches
	// changed is notified when known has changed.
	changed chan struct{}

	// The fields below are set by Join.
	groups     discovery.GroupManager
	serializer runtime.NegotiatedSerializer
	merged     aggregated.ResourceManager
	discovery  apiserver.DiscoveryAggregationController
}

// servers is a snapshot of the other servers. It is immutable.
type servers struct {
	versions map[schema.GroupVersion]*remote
	// groups are the groups of these versions, with all versions of each group.
	groups map[string]metav1.APIGroup
}

// Aggregate returns the aggregation of other servers, over the same informer of APIServices. It must be called before
// Run.
func (l *Local) Aggregate(c Config) (*Aggregation, error) {
	services := l.informers.Apiregistration().V1().APIServices()
	a := &Aggregation{
		config: c, own: l.own, services: services,
		registered: make(chan struct{}), changed: make(chan struct{}, 1), askings: newAskings(),
	}
	a.known.Store(&servers{})
	a.documents.Store(&documents{})
	a.register = apiserver.NewAPIServiceRegistrationController(services, a)
	var err error
	a.available, err = remotestatus.New(
		services,
		c.Services,
		newNoSlices(),
		l.client.ApiregistrationV1(),
		nil,
		c.Client,
		a.config.Resolver,
		l.metrics,
	)
	if err != nil {
		return nil, fmt.Errorf("availability of other servers: %w", err)
	}
	return a, nil
}

// Join implements upstream.Aggregation. The server's own groups have their priorities from now on, before their APIServices
// exist.
func (a *Aggregation) Join(groups discovery.GroupManager, merged aggregated.ResourceManager, serializer runtime.NegotiatedSerializer) {
	a.groups, a.serializer = groups, serializer
	for _, s := range a.own {
		v := metav1.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
		merged.SetGroupVersionPriority(v, int(s.Spec.GroupPriorityMinimum), int(s.Spec.VersionPriority))
	}
	merged.WithSource(aggregated.BuiltinSource).SetGroupVersionPriority(
		apiserver.APIRegistrationGroupVersion, apiserver.APIRegistrationGroupPriority, 0,
	)
	a.merged = merged.WithSource(aggregated.AggregatorSource)
	a.discovery = apiserver.NewDiscoveryManager(a.merged)
}

// Run follows the APIServices until the context ends. It must be called once, after Join.
func (a *Aggregation) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer a.askings.end()
	services := a.services.Informer().HasSyncedChecker()
	all.Go(func() {
		if synced(ctx, services) {
			a.register.Run(ctx.Done(), a.registered)
		}
	})
	all.Go(func() {
		if synced(ctx, services, a.config.Services.Informer().HasSyncedChecker()) {
			a.available.Run(checkers, ctx.Done())
		}
	})
	select {
	case <-a.registered:
		all.Go(func() { a.followDocuments(ctx) })
		a.discovery.Run(ctx.Done(), nil)
	case <-ctx.Done():
	}
}

var _ dynamiccertificates.Listener = (*Aggregation)(nil)

// Enqueue implements dynamiccertificates.Listener: the certificate of Config.Client has changed, so connections to
// other servers are recreated.
func (a *Aggregation) Enqueue() { a.register.Enqueue() }

var _ apiserver.APIHandlerManager = (*Aggregation)(nil)

// AddAPIService implements apiserver.APIHandlerManager. Its methods are not called concurrently.
func (a *Aggregation) AddAPIService(s *apiregistrationv1.APIService) error {
	v := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
	if s.Spec.Service == nil || a.always(v.Group) {
		a.RemoveAPIService(s.Name)
		return nil
	}
	r := newRemote(s, &a.config)
	if a.known.Load().versions[v] == nil {
		// Until its discovery is known, its group must not look removed.
		a.merged.AddGroupVersion(v.Group, apidiscovery.APIVersionDiscovery{Version: v.Version, Freshness: apidiscovery.DiscoveryFreshnessStale})
		a.merged.SetGroupVersionPriority(metav1.GroupVersion(v), int(s.Spec.GroupPriorityMinimum), int(s.Spec.VersionPriority))
	}
	if err := a.change(v, r); err != nil {
		return err
	}
	a.discovery.AddAPIService(s, r.anyway())
	return nil
}

// RemoveAPIService implements apiserver.APIHandlerManager.
func (a *Aggregation) RemoveAPIService(name string) {
	v := helper.APIServiceNameToGroupVersion(name)
	if a.known.Load().versions[v] != nil {
		a.discovery.RemoveAPIService(name)
	}
	if err := a.change(v, nil); err != nil {
		return // a cache returns no errors
	}
}

// always reports whether requests for a group never leave the server. Otherwise a wrong APIService could not be
// repaired.
func (a *Aggregation) always(group string) bool {
	return group == "" || group == apiregistrationv1.GroupName
}

// change replaces the server of a version, or removes it if r is nil, and updates the group.
func (a *Aggregation) change(v schema.GroupVersion, r *remote) error {
	all, err := a.services.Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	now := a.known.Load()
	if _, any := now.groups[v.Group]; r == nil && !any {
		return nil // all versions are the server's own
	}
	next := &servers{versions: maps.Clone(now.versions), groups: maps.Clone(now.groups)}
	if next.versions == nil {
		next.versions, next.groups = map[schema.GroupVersion]*remote{}, map[string]metav1.APIGroup{}
	}
	if r != nil {
		next.versions[v] = r
	} else {
		delete(next.versions, v)
	}
	_, was := now.groups[v.Group]
	group := groupOf(v.Group, all)
	is := slices.ContainsFunc(
		slices.Collect(maps.Keys(next.versions)),
		func(other schema.GroupVersion) bool { return other.Group == v.Group },
	)
	switch {
	case len(group.Versions) > 0 && (is || was):
		a.groups.AddGroup(group)
	case was:
		a.groups.RemoveGroup(v.Group)
	}
	if is && len(group.Versions) > 0 {
		next.groups[v.Group] = group
	} else {
		delete(next.groups, v.Group)
	}
	a.known.Store(next)
	await.Notify(a.changed)
	return nil
}

// groupOf returns the versions of a group, in the order of their priorities.
func groupOf(name string, all []*apiregistrationv1.APIService) metav1.APIGroup {
	group := metav1.APIGroup{Name: name}
	own := slices.DeleteFunc(slices.Clone(all), func(s *apiregistrationv1.APIService) bool { return s.Spec.Group != name })
	for _, services := range helper.SortedByGroupAndVersion(own) {
		for _, s := range services {
			v := schema.GroupVersion{Group: name, Version: s.Spec.Version}
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: v.String(), Version: v.Version})
		}
	}
	if len(group.Versions) > 0 {
		group.PreferredVersion = group.Versions[0]
	}
	return group
}

// Wrap implements upstream.Aggregation.
func (a *Aggregation) Wrap(next http.Handler) http.Handler {
	v2 := newSwagger(next, a.askings)
	// Requests for the merged discovery document are served by next, and all others by the list.
	list := aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(a.listGroups), next, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case documentsPath:
			a.listDocuments(w, r, next)
			return
		case swaggerPath:
			v2.serve(w, r, a.known.Load())
			return
		}
		v, ok := versionOf(r.URL.Path)
		if !ok {
			v, ok = versionOfDocument(r.URL.Path)
		}
		if !ok || a.always(v.Group) && v.Group != "" {
			next.ServeHTTP(w, r)
			return
		}
		if !slices.Contains(a.config.Own, v.Group) || v.Group == "" {
			// Before that, the group or the list would lack other servers' groups, which would look removed.
			select {
			case <-a.registered:
			case <-a.config.Stopped:
			case <-r.Context().Done():
			}
		}
		known := a.known.Load()
		if v.Group == "" {
			list.ServeHTTP(w, r)
		} else if other := known.versions[v]; other != nil {
			other.ServeHTTP(w, r)
		} else if group, ok := known.groups[v.Group]; ok && v.Version == "" {
			discovery.NewAPIGroupHandler(a.serializer, group).ServeHTTP(w, r)
		} else {
			next.ServeHTTP(w, r)
		}
	})
}

// listGroups answers with the groups in the order of their priorities, in which clients search them for kinds. Groups
// without an APIService come last.
func (a *Aggregation) listGroups(w http.ResponseWriter, r *http.Request) {
	groups, err := a.groups.Groups(r.Context(), r)
	if err != nil {
		fail(w, r, err.Error(), http.StatusInternalServerError)
		return
	}
	all, err := a.services.Lister().List(labels.Everything())
	if err != nil {
		fail(w, r, err.Error(), http.StatusInternalServerError)
		return
	}
	for _, s := range a.own {
		if !slices.ContainsFunc(all, func(stored *apiregistrationv1.APIService) bool { return stored.Name == s.Name }) {
			all = append(all, s) // the server has just started
		}
	}
	places := map[string]int{apiregistrationv1.GroupName: -1} // has no APIService, and comes first as in a cluster
	for i, services := range helper.SortedByGroupAndVersion(all) {
		places[services[0].Spec.Group] = i
	}
	place := func(g metav1.APIGroup) int {
		if i, ok := places[g.Name]; ok {
			return i
		}
		return len(places)
	}
	slices.SortStableFunc(groups, func(a, b metav1.APIGroup) int { return place(a) - place(b) })
	for i := range groups {
		groups[i].ServerAddressByClientCIDRs = nil // kube-apiserver's list has none
	}
	responsewriters.WriteObjectNegotiated(
		a.serializer,
		negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{},
		w,
		r,
		http.StatusOK,
		&metav1.APIGroupList{Groups: groups},
		false,
	)
}

// versionOf returns the group and the version in a path at or below /apis; either may be missing.
func versionOf(path string) (schema.GroupVersion, bool) {
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return schema.GroupVersion{}, false
	}
	parts := strings.SplitN(strings.TrimPrefix(rest, "/"), "/", 3)
	v := schema.GroupVersion{Group: parts[0]}
	if len(parts) > 1 {
		v.Version = parts[1]
	}
	return v, true
}

// connections are the subresources that kube-apiserver treats as connections.
var connections = []string{"attach", "exec", "log", "portforward", "proxy"}

// Elsewhere implements upstream.Aggregation.
func (a *Aggregation) Elsewhere(info *request.RequestInfo) bool {
	return info.IsResourceRequest && a.known.Load().versions[schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}] != nil
}

// LongRunning implements upstream.Aggregation.
func (a *Aggregation) LongRunning(r *http.Request, info *request.RequestInfo) bool {
	return a.Elsewhere(info) && (slices.Contains(connections, info.Subresource) || httpstream.IsUpgradeRequest(r))
}
