// Package aggregate maintains the APIServices of a control plane. It writes those of the server's own versions, and
// forwards requests for groups of other servers according to theirs. Upstream's controllers of kube-aggregator do
// most of the work.
package aggregate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basemetrics "k8s.io/component-base/metrics"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	localstatus "k8s.io/kube-aggregator/pkg/controllers/status/local"
	"k8s.io/kube-aggregator/pkg/controllers/status/metrics"
)

const (
	// workers is the number of APIServices that are written concurrently.
	workers = 2
	// refresh is the resync period of APIServices. Upstream checks those of other servers every half minute, unless
	// the informer's period is zero.
	refresh = 5 * time.Minute
)

// Local maintains the APIServices of a server's own versions.
type Local struct {
	client    clientset.Interface
	informers informers.SharedInformerFactory
	metrics   *metrics.Metrics
	measured  prometheus.Gatherer
	register  registration
	available interface {
		Run(workers int, stop <-chan struct{})
	}

	// own are the APIServices of the server's own versions, as they are at first.
	own []*apiregistrationv1.APIService
	// versions are the versions of custom resources, by group.
	versions map[string][]string
	start    cache.DoneChecker
	complete atomic.Bool
}

type registration interface {
	autoregister.AutoAPIServiceRegistration
	Run(workers int, stop <-chan struct{})
}

// NewLocal returns a Local for a server's own versions, in which the preferred version of a group comes first.
// Further versions are added by Serve. The client needs all rights on APIServices.
func NewLocal(config *rest.Config, own []schema.GroupVersion) (*Local, error) {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for APIServices: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, refresh)
	services := factory.Apiregistration().V1().APIServices()
	measured, registry := metrics.New(), basemetrics.NewKubeRegistry()
	if err := measured.Register(registry.Register, registry.CustomRegister); err != nil {
		return nil, fmt.Errorf("metrics of APIServices: %w", err)
	}
	available, err := localstatus.New(services, client.ApiregistrationV1(), measured)
	if err != nil {
		return nil, fmt.Errorf("availability of APIServices: %w", err)
	}
	l := &Local{
		client:    client,
		informers: factory,
		metrics:   measured,
		measured:  registry.Gatherer(),
		register:  autoregister.NewAutoRegisterController(services, client.ApiregistrationV1()),
		available: available,
		own:       ownServices(own),
		versions:  map[string][]string{},
	}
	for _, s := range l.own {
		l.register.AddAPIServiceToSyncOnStart(s)
	}
	return l, nil
}

// Metrics returns kube-apiserver's metrics of APIServices, for this server alone.
func (l *Local) Metrics() prometheus.Gatherer { return l.measured }

// Follow sets start, which is done when Serve has been called for all existing groups. Until then, no APIService is
// removed as that of a removed group.
func (l *Local) Follow(start cache.DoneChecker) { l.start = start }

// Serve sets the served versions of a group of custom resources.
func (l *Local) Serve(group string, versions []string) {
	for _, v := range l.versions[group] {
		if !slices.Contains(versions, v) {
			l.register.RemoveAPIServiceToSync(nameOf(schema.GroupVersion{Group: group, Version: v}))
		}
	}
	for _, v := range versions {
		if !slices.Contains(l.versions[group], v) {
			l.register.AddAPIServiceToSync(service(schema.GroupVersion{Group: group, Version: v}, customPriority))
		}
	}
	l.versions[group] = slices.Clone(versions)
}

// Ready returns nil as soon as all APIServices of own versions are available, as a kube-apiserver's check
// autoregister-completion does; before that, an error names a missing one. It stays nil if they change later. It may be
// called concurrently.
func (l *Local) Ready() error {
	if l.complete.Load() {
		return nil
	}
	known := l.informers.Apiregistration().V1().APIServices().Lister()
	for _, s := range l.own {
		stored, err := known.Get(s.Name)
		if err != nil || stored.Spec.Service == nil && !helper.IsAPIServiceConditionTrue(stored, apiregistrationv1.Available) {
			return fmt.Errorf("the APIService %s is not available yet", s.Name)
		}
	}
	l.complete.Store(true)
	return nil
}

// Run maintains the APIServices until the context ends.
func (l *Local) Run(ctx context.Context) {
	l.informers.StartWithContext(ctx)
	defer l.informers.Shutdown()
	services := l.informers.Apiregistration().V1().APIServices().Informer()
	if !synced(ctx, services.HasSyncedChecker(), l.start) {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { l.register.Run(workers, ctx.Done()) })
	all.Go(func() { l.available.Run(1, ctx.Done()) })
}

// synced waits until upstream's controllers can start. They wait themselves, but poll every 100 ms, and log an error if
// the server stops before.
func synced(ctx context.Context, all ...cache.DoneChecker) bool {
	return cache.WaitFor(ctx, "", all...)
}

func nameOf(v schema.GroupVersion) string { return v.Version + "." + v.Group }

func service(v schema.GroupVersion, p priority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(v)},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:                v.Group,
			Version:              v.Version,
			GroupPriorityMinimum: p.group,
			VersionPriority:      p.version,
		},
	}
}
