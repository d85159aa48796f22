// Package aggregate keeps the APIServices of a control plane: those that say which versions of
// groups the server has itself, and those of other servers, to which it sends the requests for
// their groups. Upstream's controllers of kube-aggregator do most of the work.
package aggregate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basemetrics "k8s.io/component-base/metrics"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	localstatus "k8s.io/kube-aggregator/pkg/controllers/status/local"
	"k8s.io/kube-aggregator/pkg/controllers/status/metrics"
)

const (
	// workers is how many APIServices are written at the same time.
	workers = 2
	// refresh is how often all APIServices are looked at anew. Upstream looks at those of other
	// servers each half minute, if the informer's own period is not zero.
	refresh = 5 * time.Minute
)

// Local keeps the APIServices of the versions that a server has itself.
type Local struct {
	client    clientset.Interface
	informers informers.SharedInformerFactory
	metrics   *metrics.Metrics
	measured  prometheus.Gatherer
	register  registration
	available interface {
		Run(workers int, stop <-chan struct{})
	}

	// versions are those of custom resources, by group.
	versions map[string][]string
	start    cache.DoneChecker
}

type registration interface {
	autoregister.AutoAPIServiceRegistration
	Run(workers int, stop <-chan struct{})
}

// NewLocal returns what keeps the APIServices of a server's own versions, in which the preferred one
// of a group comes first, and of those that Serve is told of. The client needs all rights for
// APIServices.
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
		versions:  map[string][]string{},
	}
	for _, s := range ownServices(own) {
		l.register.AddAPIServiceToSyncOnStart(s)
	}
	return l, nil
}

// Metrics are kube-apiserver's figures of APIServices, those of this server alone.
func (l *Local) Metrics() prometheus.Gatherer { return l.measured }

// Follow says when Serve has been told of all that is there at the start: until then, no APIService is
// taken for one of a group that is gone.
func (l *Local) Follow(start cache.DoneChecker) { l.start = start }

// Serve says which versions of a group there are as custom resources.
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

// Run keeps them until the context ends.
func (l *Local) Run(ctx context.Context) {
	l.informers.StartWithContext(ctx)
	defer l.informers.Shutdown()
	if !cache.WaitFor(ctx, "", l.start) {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { l.register.Run(workers, ctx.Done()) })
	all.Go(func() { l.available.Run(1, ctx.Done()) })
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
