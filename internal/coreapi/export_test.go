package coreapi

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

// RunDeletionWithoutRetry is RunDeletion that relies on watches alone.
func (n *Namespaces) RunDeletionWithoutRetry(ctx context.Context, client *rest.Config, resources func() []schema.GroupVersionResource) error {
	d, err := n.newDeletion(client, resources, workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, time.Hour))
	if err != nil {
		return err
	}
	return d.run(ctx)
}
