package controlplane

import (
	"context"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// A server answers until the shutdown delay has passed, so its answers must follow from the objects until then.
func TestDrain_admissionAndRoles_followUntilRequestsAreRejected(t *testing.T) {
	t.Parallel()
	begun, seen := make(chan struct{}), make(chan error, 1)
	s := cluster()
	s.Controllers = []annex.Controller{{Name: "last", Run: func(ctx context.Context, env *annex.Env) error {
		close(begun)
		<-ctx.Done() // the server drains
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testwait.Patience)
		defer cancel()
		client, err := kubernetes.NewForConfig(env.ClientConfig())
		if err == nil {
			err = aggregates(ctx, client)
		}
		if err == nil {
			err = enforces(ctx, client)
		}
		seen <- err
		return nil
	}}}
	instance, err := annex.New(t.Context(), s, annex.Options{Storage: memory.Storage(), ShutdownTimeout: testwait.Patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- instance.Run(ctx, func() {}) }()
	<-begun
	stop()
	if err := <-seen; err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// aggregates returns nil when the rules of a new role are those of the role that aggregates it.
func aggregates(ctx context.Context, client kubernetes.Interface) error {
	roles := client.RbacV1().ClusterRoles()
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"last"}}
	_, err := roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "last", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	for err == nil {
		var view *rbacv1.ClusterRole
		if view, err = roles.Get(ctx, "view", metav1.GetOptions{}); err != nil {
			break
		}
		for _, r := range view.Rules {
			if r.String() == rule.String() {
				return nil
			}
		}
	}
	return fmt.Errorf("a role made while the server drains is not aggregated: %w", err)
}

// enforces returns nil when a new webhook without a server makes a write fail.
func enforces(ctx context.Context, client kubernetes.Interface) error {
	none, unreachable := admissionregistrationv1.SideEffectClassNone, "https://127.0.0.1:1/"
	_, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(
		ctx,
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "last"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name:                    "last.example.com",
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"},
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &unreachable},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule: admissionregistrationv1.Rule{
						APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
					},
				}},
			}},
		},
		metav1.CreateOptions{},
	)
	for err == nil {
		_, err = client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(
			ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "last-"}}, metav1.CreateOptions{},
		)
		if apierrors.IsInternalError(err) {
			return nil
		}
	}
	return fmt.Errorf("a webhook made while the server drains is not called: %w", err)
}
