package coreapi

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

// Bootstrap creates the initial namespaces unless they exist. Failures are logged and retried until ctx is done; the
// error then contains the reason of the last failure. The server should not be ready before Bootstrap has returned
// nil.
func (n *Namespaces) Bootstrap(ctx context.Context, client *rest.Config) error {
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client for namespaces: %w", err)
	}
	for _, name := range append([]string{metav1.NamespaceDefault}, n.system...) {
		if err := ensure(ctx, core.Namespaces(), name); err != nil {
			return err
		}
	}
	return nil
}

func ensure(ctx context.Context, namespaces corev1client.NamespaceInterface, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: 5 * time.Second}.DelayFunc()
	for {
		_, err := namespaces.Create(ctx, namespace, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if !await.Sleep(ctx, clock.RealClock{}, backoff()) {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
		klog.FromContext(ctx).Error(err, "Failed to create the namespace, trying again", "namespace", name)
	}
}
