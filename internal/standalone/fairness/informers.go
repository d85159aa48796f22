package fairness

import (
	"context"
	"reflect"
	"sync"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/informers/flowcontrol"
	flowinformers "k8s.io/client-go/informers/flowcontrol/v1"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	flowclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
)

// factory creates the two informers that upstream's flow control requests, each once, and no others. It must be
// filled before it runs.
type factory struct {
	kubeinformers.SharedInformerFactory

	client clientset
	made   map[reflect.Type]cache.SharedIndexInformer
}

// clientset contains the only client that the informers need.
type clientset struct {
	kubernetes.Interface
	flowcontrol flowclient.FlowcontrolV1Interface
}

func (c clientset) FlowcontrolV1() flowclient.FlowcontrolV1Interface { return c.flowcontrol }

func newFactory(client flowclient.FlowcontrolV1Interface) *factory {
	return &factory{client: clientset{flowcontrol: client}, made: map[reflect.Type]cache.SharedIndexInformer{}}
}

// InformerFor returns the informer of a type.
func (f *factory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	t := reflect.TypeOf(obj)
	if f.made[t] == nil {
		f.made[t] = make(f.client, 0)
		// The watch fails when the server ends, which is not an error. The setter fails only if the informer is
		// already running.
		_ = f.made[t].SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if ctx.Err() == nil {
				cache.DefaultWatchErrorHandler(ctx, r, err)
			}
		})
	}
	return f.made[t]
}

// InformerName returns nil: the informers have no metrics.
func (f *factory) InformerName() *cache.InformerName { return nil }

func (f *factory) Flowcontrol() flowcontrol.Interface { return group{factory: f} }

type group struct {
	flowcontrol.Interface
	factory *factory
}

func (g group) V1() flowinformers.Interface { return flowinformers.New(g.factory, "", nil) }

// run keeps the caches current until the context ends.
func (f *factory) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, i := range f.made {
		all.Go(func() { i.RunWithContext(ctx) })
	}
}

// waitForSync waits until the caches are filled. It returns false if the context ends first.
func (f *factory) waitForSync(ctx context.Context) bool {
	var all []cache.DoneChecker
	for _, i := range f.made {
		all = append(all, i.HasSyncedChecker())
	}
	return cache.WaitFor(ctx, "", all...)
}

func (f *factory) flowSchemas() ([]*flowcontrolv1.FlowSchema, error) {
	return f.Flowcontrol().V1().FlowSchemas().Lister().List(labels.Everything())
}

func (f *factory) priorityLevels() ([]*flowcontrolv1.PriorityLevelConfiguration, error) {
	return f.Flowcontrol().V1().PriorityLevelConfigurations().Lister().List(labels.Everything())
}
