package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/model/admit"
)

// gateName is the name, in metrics, of the plugin that rejects writes while the cluster is unavailable.
const gateName = "Cluster"

// Admission returns the complete admission of a server. The first plugin rejects all writes while the cluster does
// not provide the server's requirements. It is followed by the cluster's plugins. The server's own plugins are last,
// so that they receive the final object. Admission must be called once, before Run.
func (h *Cluster) Admission(own []admit.Plugin, configuration admission.ConfigProvider) (admission.Interface, error) {
	upstream := admission.NewPlugins()
	lifecycle.Register(upstream)
	mutating.Register(upstream)
	mutatingwebhook.Register(upstream)
	validating.Register(upstream)
	validatingwebhook.Register(upstream)
	plugins := []admit.Plugin{admit.NewPlugin(gateName, gate{h})}
	enabled, _ := requirements.Enabled(h.config.Admission)
	for _, name := range enabled {
		plugins = append(plugins, admit.Plugin{Name: name})
	}
	if len(enabled) > 0 {
		h.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(h.core.Discovery()))
	}
	initialize := initializer.New(
		h.core,
		h.dynamic,
		h.informers,
		h.all,
		utilfeature.DefaultFeatureGate,
		h.config.Version,
		h.stopped,
		h.mapper,
	)
	chain, err := admit.Chain(upstream, append(plugins, own...), configuration, initialize)
	if err != nil {
		return nil, err
	}
	return admissionmetrics.WithStepMetrics(chain), nil
}

// gate rejects all writes while the checks of the cluster cannot be made.
type gate struct{ cluster *Cluster }

var _ admission.MutationInterface = gate{}

func (gate) Handles(admission.Operation) bool { return true }

// Admit modifies nothing. It is in the mutating phase because that comes first.
func (g gate) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	if err := g.cluster.Problem(); err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	return nil
}

// Namespaces returns the names of the cluster's namespaces, as last observed. It returns none if the plugin
// NamespaceLifecycle is disabled.
func (h *Cluster) Namespaces(context.Context) ([]string, error) {
	if in, _ := requirements.Enabled(h.config.Admission); !slices.Contains(in, lifecycle.PluginName) {
		return nil, nil
	}
	if err := h.Problem(); err != nil {
		return nil, err
	}
	all, err := h.informers.Core().V1().Namespaces().Lister().List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("namespaces of the cluster: %w", err)
	}
	var names []string
	for _, ns := range all {
		names = append(names, ns.Name)
	}
	return names, nil
}

// HasNamespace returns nil if the namespace exists in the cluster and is not being deleted. It is for objects that do
// not come from requests. If the plugin NamespaceLifecycle is disabled, every namespace counts as existing.
func (h *Cluster) HasNamespace(ctx context.Context, name string) error {
	if in, _ := requirements.Enabled(h.config.Admission); !slices.Contains(in, lifecycle.PluginName) {
		return nil
	}
	if err := h.Problem(); err != nil {
		return err
	}
	ns, err := h.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("namespace %s of the cluster: %w", name, err)
	}
	if ns.Status.Phase == corev1.NamespaceTerminating {
		return fmt.Errorf("the cluster is deleting the namespace %s", name)
	}
	return nil
}
