package cluster

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/informers/flowcontrol"
	flowinformers "k8s.io/client-go/informers/flowcontrol/v1"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	flowclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// clientset contains only the clients that upstream's components use, of the dozens in client-go's set. Linking all
// of them makes a server a fifth larger. Any other method is a nil dereference.
type clientset struct {
	kubernetes.Interface

	discovery      *discovery.DiscoveryClient
	core           *coreclient.CoreV1Client
	admission      *admissionclient.AdmissionregistrationV1Client
	flowcontrol    *flowclient.FlowcontrolV1Client
	authentication *authenticationclient.AuthenticationV1Client
	authorization  *authorizationclient.AuthorizationV1Client
}

// newClientset creates clients that share connections.
func newClientset(config *rest.Config, h *http.Client) (c *clientset, err error) {
	c = &clientset{}
	if c.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(config, h); err != nil {
		return nil, err
	}
	if c.core, err = coreclient.NewForConfigAndClient(config, h); err != nil {
		return nil, err
	}
	if c.admission, err = admissionclient.NewForConfigAndClient(config, h); err != nil {
		return nil, err
	}
	if c.flowcontrol, err = flowclient.NewForConfigAndClient(config, h); err != nil {
		return nil, err
	}
	if c.authentication, err = authenticationclient.NewForConfigAndClient(config, h); err != nil {
		return nil, err
	}
	c.authorization, err = authorizationclient.NewForConfigAndClient(config, h)
	return c, err
}

func (c *clientset) Discovery() discovery.DiscoveryInterfaces { return c.discovery }
func (c *clientset) CoreV1() coreclient.CoreV1Interface       { return c.core }

func (c *clientset) AdmissionregistrationV1() admissionclient.AdmissionregistrationV1Interface {
	return c.admission
}
func (c *clientset) FlowcontrolV1() flowclient.FlowcontrolV1Interface { return c.flowcontrol }

func (c *clientset) AuthenticationV1() authenticationclient.AuthenticationV1Interface {
	return c.authentication
}
func (c *clientset) AuthorizationV1() authorizationclient.AuthorizationV1Interface {
	return c.authorization
}

// factory creates the informers of these groups, each once, like client-go's factory. It supports no others: the
// parameters of policies are watched without types.
type factory struct {
	informers.SharedInformerFactory

	client  kubernetes.Interface
	mu      sync.Mutex
	made    map[reflect.Type]cache.SharedIndexInformer
	running sync.WaitGroup
}

func newFactory(client kubernetes.Interface) *factory {
	return &factory{client: client, made: map[reflect.Type]cache.SharedIndexInformer{}}
}

// InformerFor returns the informer of a type. newFunc creates it at the first call.
func (f *factory) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := reflect.TypeOf(obj)
	if f.made[t] == nil {
		f.made[t] = newFunc(f.client, 0)
	}
	return f.made[t]
}

// InformerName returns nil: the informers have no metrics.
func (f *factory) InformerName() *cache.InformerName { return nil }

// ForResource always returns an error, which makes policies watch their parameters themselves.
func (f *factory) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	return nil, fmt.Errorf("no typed informer of %s", resource)
}

// run runs all created informers until the context ends.
func (f *factory) run(ctx context.Context) {
	f.mu.Lock()
	defer f.running.Wait()
	defer f.mu.Unlock()
	for _, informer := range f.made {
		f.running.Go(func() { informer.RunWithContext(ctx) })
	}
}

// synced returns a function that reports whether all objects of a resource have been read.
func (f *factory) synced(resource schema.GroupVersionResource) func() bool {
	registered, flow := f.Admissionregistration().V1(), f.Flowcontrol().V1()
	switch resource.Resource {
	case "namespaces":
		return f.Core().V1().Namespaces().Informer().HasSynced
	case "mutatingadmissionpolicies":
		return registered.MutatingAdmissionPolicies().Informer().HasSynced
	case "mutatingadmissionpolicybindings":
		return registered.MutatingAdmissionPolicyBindings().Informer().HasSynced
	case "mutatingwebhookconfigurations":
		return registered.MutatingWebhookConfigurations().Informer().HasSynced
	case "validatingadmissionpolicies":
		return registered.ValidatingAdmissionPolicies().Informer().HasSynced
	case "validatingadmissionpolicybindings":
		return registered.ValidatingAdmissionPolicyBindings().Informer().HasSynced
	case "validatingwebhookconfigurations":
		return registered.ValidatingWebhookConfigurations().Informer().HasSynced
	case "flowschemas":
		return flow.FlowSchemas().Informer().HasSynced
	case "prioritylevelconfigurations":
		return flow.PriorityLevelConfigurations().Informer().HasSynced
	}
	return nil
}

func (f *factory) Core() core.Interface { return coreGroup{factory: f} }

func (f *factory) Admissionregistration() admissionregistration.Interface {
	return admissionGroup{factory: f}
}

func (f *factory) Flowcontrol() flowcontrol.Interface { return flowGroup{factory: f} }

type coreGroup struct {
	core.Interface
	factory *factory
}

func (g coreGroup) V1() coreinformers.Interface { return coreVersion{factory: g.factory} }

type coreVersion struct {
	coreinformers.Interface
	factory *factory
}

func (v coreVersion) Namespaces() coreinformers.TypedNamespaceInformer { return namespaceInformer(v) }

type namespaceInformer coreVersion

func (i namespaceInformer) Informer() cache.SharedIndexInformer {
	return i.factory.InformerFor(&corev1.Namespace{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewNamespaceInformer(client, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
}

func (i namespaceInformer) TypedInformer() coreinformers.NamespaceIndexInformer {
	return cache.NewTypedSharedIndexInformer[*corev1.Namespace](i.Informer())
}

func (i namespaceInformer) Lister() corelisters.NamespaceLister {
	return corelisters.NewNamespaceLister(i.Informer().GetIndexer())
}

type admissionGroup struct {
	admissionregistration.Interface
	factory *factory
}

func (g admissionGroup) V1() admissioninformers.Interface {
	return admissioninformers.New(g.factory, "", nil)
}

type flowGroup struct {
	flowcontrol.Interface
	factory *factory
}

func (g flowGroup) V1() flowinformers.Interface { return flowinformers.New(g.factory, "", nil) }
