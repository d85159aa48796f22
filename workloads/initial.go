package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clients "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// initial creates the objects that a kube-apiserver creates at its start.
type initial struct {
	classes clients.PriorityClassInterface
}

func newInitial(client *rest.Config) (*initial, error) {
	c, err := clients.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("client of the server: %w", err)
	}
	return &initial{c.PriorityClasses()}, nil
}

// run tries until all objects exist or the context ends.
func (i *initial) run(ctx context.Context) {
	err := wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 1 << 20, Cap: 10 * time.Second},
		func(ctx context.Context) (bool, error) {
			if err := i.create(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Could not create the priority classes that every cluster has")
				return false, nil
			}
			return true, nil
		})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Gave up creating the priority classes that every cluster has")
	}
}

func (i *initial) create(ctx context.Context) error {
	var errs []error
	for _, class := range scheduling.SystemPriorityClasses() {
		if _, err := i.classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
