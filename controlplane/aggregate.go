package controlplane

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex/internal/controlplane/aggregate"
	"github.com/annexapi/annex/internal/controlplane/crds"
	"github.com/annexapi/annex/internal/controlplane/publish"
	"github.com/annexapi/annex/internal/program/definition"
)

// follower is notified of custom resources.
type follower interface {
	crds.Follower
	Run(ctx context.Context)
}

// addAPIServices keeps an APIService for each version of the server, and of its extension, and sends requests for the groups
// of other servers to them. It returns nil if the kind APIService is left out.
func addAPIServices(
	opened *definition.Opened, p definition.Host, extension []schema.GroupVersion, services *services,
) (follower, error) {
	if !slices.Contains(p.Versions, apiregistrationv1.SchemeGroupVersion) {
		return nil, nil
	}
	own := append(slices.Clip(p.Versions), apiextensionsv1.SchemeGroupVersion)
	groups := append(slices.Clip(p.Groups), apiextensionsv1.GroupName)
	for _, v := range extension {
		if !slices.Contains(own, v) {
			own, groups = append(own, v), append(groups, v.Group)
		}
	}
	own = slices.DeleteFunc(own, func(v schema.GroupVersion) bool {
		return v.Group == apiregistrationv1.GroupName // a kube-apiserver has no APIService for it, either
	})
	local, err := aggregate.NewLocal(p.Client, own)
	if err != nil {
		return nil, err
	}
	opened.Metrics = append(opened.Metrics, local.Metrics())
	alongside(opened, local.Run)
	alsoReady(opened, local.Ready)
	if services.informer == nil {
		return local, nil
	}
	others, err := local.Aggregate(
		aggregate.Config{
			Services: services.informer,
			Resolver: services.resolver,
			Own:      groups,
			Client:   p.Front.Proxy.Client,
			Stopped:  p.Stopped,
		},
	)
	if err != nil {
		return nil, err
	}
	p.Front.Proxy.AddListener(others)
	opened.Aggregation = others
	alongside(opened, others.Run)
	return local, nil
}

// services are a server's Services, through which it finds other servers.
type services struct {
	informer coreinformers.ServiceInformer // nil if the kind is left out
	resolver webhook.ServiceResolver
	run      func(context.Context)
}

// followServices finds other servers by the server's Services, or by their DNS names if the kind is left out.
func followServices(config *rest.Config, serves func(schema.GroupResource) bool) (*services, error) {
	if !serves(corev1.Resource("services")) {
		return &services{resolver: webhook.NewDefaultServiceResolver(), run: func(context.Context) {}}, nil
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for Services: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Services()
	return &services{informer, aggregate.NewResolver(informer), func(ctx context.Context) {
		factory.StartWithContext(ctx)
		factory.Shutdown()
	}}, nil
}

// webhooks finds the servers of webhooks. The Service kubernetes stands for this server itself, whose address does
// not matter: see loopback.AsService.
type webhooks struct{ webhook.ServiceResolver }

// ResolveEndpoint implements webhook.ServiceResolver.
func (w webhooks) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceDefault && name == "kubernetes" && port == 443 {
		return &url.URL{Scheme: "https", Host: "kubernetes.default.svc:443"}, nil
	}
	return w.ServiceResolver.ResolveEndpoint(namespace, name, port)
}

// addAuthentication publishes how the servers behind this one authenticate it and its callers, once for each replica,
// since each replica has certificates of its own.
func addAuthentication(opened *definition.Opened, p definition.Host) {
	changed := make(notified, 1)
	p.Front.Proxy.AddListener(changed)
	p.Front.UserCA.AddListener(changed)
	told := publish.Authentication{
		UserCA:     p.Front.UserCA.CurrentCABundleContent,
		ProxyCA:    p.Front.Proxy.CA,
		ProxyNames: p.Front.Proxy.Names,
		Changed:    changed,
	}
	alongside(opened, func(ctx context.Context) {
		if err := publish.RunAuthentication(ctx, p.Client, told); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to publish the authentication configuration for aggregated servers")
		}
	})
}

// notified wakes its reader when certificates change.
type notified chan struct{}

var _ dynamiccertificates.Listener = notified(nil)

// Enqueue implements dynamiccertificates.Listener.
func (n notified) Enqueue() {
	select {
	case n <- struct{}{}:
	default:
	}
}
