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

	"github.com/annexapi/annex/internal/await"
)

// EnsureDefault returns nil when the namespace default exists, which it creates if
// need be. What fails is logged and tried again until ctx is done; the error is
// then the reason of the last failure. The server should not be ready before.
func EnsureDefault(ctx context.Context, client *rest.Config) error {
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client for namespaces: %w", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: 5 * time.Second}.DelayFunc()
	for {
		_, err := core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if !await.Sleep(ctx, clock.RealClock{}, backoff()) {
			return fmt.Errorf("create namespace %s: %w", metav1.NamespaceDefault, err)
		}
		klog.FromContext(ctx).Error(err, "The namespace was not created, trying again", "namespace", metav1.NamespaceDefault)
	}
}
