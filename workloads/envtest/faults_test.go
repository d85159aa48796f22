package envtest_test

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/workloads/envtest"
)

func allowing() admission.Handler {
	return admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })
}

func TestFaultyWebhooks_slow(t *testing.T) {
	path, timeout, fail, none := "/validate", int32(1), admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	e := &envtest.Environment{WebhookInstallOptions: envtest.WebhookInstallOptions{
		ValidatingWebhooks: []*admissionregistrationv1.ValidatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{Name: "maps"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name:                    "maps.example.com",
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &path}},
				TimeoutSeconds:          &timeout,
				FailurePolicy:           &fail,
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
			}},
		}},
	}}
	c := start(t, e)
	var faults annextest.Faults
	o := e.WebhookInstallOptions
	server := envtest.FaultyWebhooks(webhook.NewServer(webhook.Options{
		Host: o.LocalServingHost, Port: o.LocalServingPort, CertDir: o.LocalServingCertDir,
	}), &faults)
	server.Register(path, &admission.Webhook{Handler: allowing()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for server.StartedChecker()(nil) != nil {
		if ctx.Err() != nil {
			t.Fatal("the webhook server does not start")
		}
	}

	faults.OnWebhook(t, "create", "configmaps").Name("m").First(1).Hang()
	create := func() error {
		return c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}})
	}
	if err := create(); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "maps.example.com") {
		t.Errorf("a create while its webhook hangs: %v", err)
	}
	if err := create(); err != nil {
		t.Errorf("the next create: %v", err)
	}
}

// A suite wraps the configuration of its environment.
func TestEnvironment_faultsAndReport(t *testing.T) {
	e := &envtest.Environment{}
	start(t, e)
	var faults annextest.Faults
	var report annextest.Report
	config := report.Wrap(faults.Wrap(e.Config))
	report.OnFailure(t)
	faults.On(t, "update", "configmaps").First(1).Conflict()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}
	if err := c.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Data = map[string]string{"a": "1"}
	if err := c.Update(t.Context(), m); !apierrors.IsConflict(err) {
		t.Errorf("the first update: %v", err)
	}
	if err := c.Update(t.Context(), m); err != nil {
		t.Errorf("the second update: %v", err)
	}
	var b strings.Builder
	if _, err := report.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"409 Conflict", "(injected: conflict)", `+ data.a: "1"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, b.String())
		}
	}
}
