package coreapi

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
)

// RunDeletionWithoutRetry is like RunDeletion, relying on watches alone.
func (n *Namespaces) RunDeletionWithoutRetry(ctx context.Context, client *rest.Config, content Content) error {
	d, err := n.newDeletion(client, content, time.Hour, time.Hour)
	if err != nil {
		return err
	}
	return d.run(ctx)
}
