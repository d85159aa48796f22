package coreapi

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
)

// RunDeletionWithoutRetry is like RunDeletion, relying on watches alone.
func (n *Namespaces) RunDeletionWithoutRetry(ctx context.Context, client *rest.Config, content Content) error {
	d, err := n.newDeletion(client, content, workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, time.Hour))
	if err != nil {
		return err
	}
	return d.run(ctx)
}
