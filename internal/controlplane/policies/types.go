package policies

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/worker"
)

// typeChecker is the field manager of the results of the checks.
const typeChecker = "validatingadmissionpolicy-status-controller"

// types checks the expressions of policies against the schemas of the matched kinds, and writes errors to their
// status.
type types struct {
	client   kubernetes.Interface
	policies listers.ValidatingAdmissionPolicyLister
	checker  *validating.TypeChecker
	queue    worker.Queue[string]
}

// RunTypeChecks checks the types of policies until the context ends. The client has all rights. It returns an error
// only if the client cannot be created; all other errors are logged and retried.
func RunTypeChecks(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the types of policies: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	policies := factory.Admissionregistration().V1().ValidatingAdmissionPolicies()
	t := &types{
		client:   client,
		policies: policies.Lister(),
		checker: &validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client.Discovery()},
			RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	enqueue := func(obj any) {
		if policy, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy); ok {
			t.queue.Add(policy.Name)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }}
	if _, err := policies.Informer().AddEventHandler(handler); err != nil {
		return fmt.Errorf("informer of policies: %w", err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	worker.Run(ctx, t.queue, 1, worker.Retrying(t.queue, t.check, func(ctx context.Context, name string, err error) {
		klog.FromContext(ctx).Error(err, "Failed to check the types of a policy, trying again", "policy", name)
	}))
	return nil
}

func (t *types) check(ctx context.Context, name string) error {
	policy, err := t.policies.Get(name)
	if apierrors.IsNotFound(err) || err == nil && policy.Status.ObservedGeneration == policy.Generation && policy.Status.TypeChecking != nil {
		return nil
	}
	if err != nil {
		return err
	}
	checked := applyv1.TypeChecking()
	for _, warning := range t.checker.Check(policy) {
		checked.WithExpressionWarnings(applyv1.ExpressionWarning().WithFieldRef(warning.FieldRef).WithWarning(warning.Warning))
	}
	status := applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(checked)
	_, err = t.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		applyv1.ValidatingAdmissionPolicy(name).WithStatus(status), metav1.ApplyOptions{FieldManager: typeChecker, Force: true})
	return err
}
