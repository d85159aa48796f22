package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// Register makes the cluster forward API versions to a server on this machine, and returns when all of them are
// available. The port of each APIService's service is the server's own; the namespace and the service are created if
// they do not exist. APIServices of the same names are replaced.
func (c *Cluster) Register(ctx context.Context, services ...*apiregistrationv1.APIService) error {
	core, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	client, err := aggregator.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Spec.Service == nil || s.Spec.Service.Port == nil {
			return fmt.Errorf("register %s: the APIService names no service with a port", s.Name)
		}
		if err := ensureService(ctx, core, s.Spec.Service.Namespace, s.Spec.Service.Name); err != nil {
			return fmt.Errorf("register %s: %w", s.Name, err)
		}
		if err := ensureAPIService(ctx, client, s); err != nil {
			return fmt.Errorf("register %s: %w", s.Name, err)
		}
	}
	for _, s := range services {
		if err := c.AwaitAvailable(ctx, s.Name, apiregistrationv1.ConditionTrue); err != nil {
			return err
		}
	}
	return nil
}

func ensureService(ctx context.Context, client kubernetes.Interface, namespace, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	_, err := client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func ensureAPIService(ctx context.Context, client aggregator.Interface, s *apiregistrationv1.APIService) error {
	services := client.ApiregistrationV1().APIServices()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := services.Get(ctx, s.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = services.Create(ctx, s, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		found.Labels, found.Annotations, found.Spec = s.Labels, s.Annotations, s.Spec
		_, err = services.Update(ctx, found, metav1.UpdateOptions{})
		return err
	})
}

// AwaitAvailable waits until the condition Available of an APIService has the status.
func (c *Cluster) AwaitAvailable(ctx context.Context, name string, status apiregistrationv1.ConditionStatus) error {
	client, err := aggregator.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	last := errors.New("it has not been asked")
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var s *apiregistrationv1.APIService
		if s, last = client.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{}); last != nil {
			return false, nil
		}
		last = errors.New("there is no condition Available")
		for _, condition := range s.Status.Conditions {
			if condition.Type == apiregistrationv1.Available {
				last = fmt.Errorf("it is %s, %s: %s", condition.Status, condition.Reason, condition.Message)
				return condition.Status == status, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("APIService %s is not available=%s: %w: %w", name, status, err, last)
	}
	return nil
}

// CheckAgain makes the cluster check at once whether an APIService is available. By itself it checks when the
// APIService changes, and every half minute.
func (c *Cluster) CheckAgain(ctx context.Context, name string) error {
	client, err := aggregator.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"checked":%q}}}`, time.Now().Format(time.RFC3339Nano))
	_, err = client.ApiregistrationV1().APIServices().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Unregister removes APIServices. A missing one is no error.
func (c *Cluster) Unregister(ctx context.Context, names ...string) error {
	client, err := aggregator.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := client.ApiregistrationV1().APIServices().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("unregister %s: %w", name, err)
		}
	}
	return nil
}
