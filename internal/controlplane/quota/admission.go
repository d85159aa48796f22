package quota

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/model/admit"
)

// PluginName is the name of the admission plugin.
const PluginName = resourcequota.PluginName

// Admission rejects creates that exceed the limits of quotas.
type Admission struct {
	client   clientset
	quotas   cache.SharedIndexInformer
	creates  *Creates
	measures measures
	stopped  <-chan struct{}
}

// NewAdmission creates the client, which has all rights and whose requests may wait until the server runs. It sends
// no requests. The plugin records creates for the controller of the same server. stopped is closed when no more
// requests arrive. Objects are charged by the evaluator of their kind, which may be one of evaluators, and otherwise
// counted.
func NewAdmission(config *rest.Config, creates *Creates, stopped <-chan struct{}, evaluators ...quota.Evaluator) (*Admission, error) {
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for quotas: %w", err)
	}
	return &Admission{
		client: clientset{core: client}, quotas: informerOf(client, 0), creates: creates, measures: evaluators, stopped: stopped,
	}, nil
}

func informerOf(client *corev1client.CoreV1Client, resync time.Duration) cache.SharedIndexInformer {
	quotas := cache.NewListWatchFromClient(client.RESTClient(), Resource.Resource, "", fields.Everything())
	return cache.NewSharedIndexInformer(
		quotas,
		&corev1.ResourceQuota{},
		resync,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
	)
}

// Plugin returns the plugin.
func (a *Admission) Plugin() admit.Plugin {
	return admit.Plugin{Name: PluginName, Make: func(config io.Reader) (admission.Interface, error) {
		loaded, err := resourcequota.LoadConfiguration(config)
		if err != nil {
			return nil, err
		}
		if errs := validation.ValidateConfiguration(loaded); len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		plugin, err := resourcequota.NewResourceQuota(loaded, workers)
		if err != nil {
			return nil, err
		}
		plugin.SetExternalKubeClientSet(a.client)
		plugin.SetExternalKubeInformerFactory(factory{quotas: a.quotas})
		plugin.SetDrainedNotification(a.stopped)
		plugin.SetQuotaConfiguration(a.measures.configuration())
		return recordingPlugin{plugin, a}, plugin.ValidateInitialization()
	}}
}

// limits reports whether a namespace may have quotas. Until the informer has synced, any namespace may.
func (a *Admission) limits(namespace string) bool {
	// ByIndex fails only for an index that does not exist.
	quotas, _ := a.quotas.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	return len(quotas) > 0 || !a.quotas.HasSynced()
}

// Run follows quotas until the context ends.
func (a *Admission) Run(ctx context.Context) { a.quotas.RunWithContext(ctx) }

// clientset, factory and the types below implement only the methods that the plugin calls. Any other method is a nil
// dereference.
type clientset struct {
	kubernetes.Interface
	core corev1client.CoreV1Interface
}

func (c clientset) CoreV1() corev1client.CoreV1Interface { return c.core }

type factory struct {
	informers.SharedInformerFactory
	quotas cache.SharedIndexInformer
}

func (f factory) Core() core.Interface { return coreGroup{quotas: f.quotas} }

type coreGroup struct {
	core.Interface
	quotas cache.SharedIndexInformer
}

func (g coreGroup) V1() coreinformers.Interface { return coreVersion{quotas: g.quotas} }

type coreVersion struct {
	coreinformers.Interface
	quotas cache.SharedIndexInformer
}

func (v coreVersion) ResourceQuotas() coreinformers.TypedResourceQuotaInformer {
	return quotaInformer{v.quotas}
}

type quotaInformer struct{ quotas cache.SharedIndexInformer }

func (i quotaInformer) Informer() cache.SharedIndexInformer { return i.quotas }

func (i quotaInformer) TypedInformer() coreinformers.ResourceQuotaIndexInformer {
	return cache.NewTypedSharedIndexInformer[*corev1.ResourceQuota](i.quotas)
}

func (i quotaInformer) Lister() corelisters.ResourceQuotaLister {
	return corelisters.NewResourceQuotaLister(i.quotas.GetIndexer())
}
