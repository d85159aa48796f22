package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func kubernetesClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func namespaceDeletion(t *testing.T, w *wardle) {
	// The namespace controller requests the deletion of all objects in protobuf, which upstream's server answers with
	// 406 after it has deleted. The controller retries until it finds nothing to delete; meanwhile the namespace's
	// conditions have less detail.
	says := corev1.NamespaceFinalizersRemaining
	if w.upstream {
		says = corev1.NamespaceDeletionContentFailure
	}
	ns := namespace(t)
	client, core := flunders(t, host.Admin(), ns), kubernetesClient(t)
	for i := range 20 {
		flunder := newFlunder(fmt.Sprintf("f-%d", i), "a")
		if i == 0 {
			flunder.SetFinalizers([]string{"example.com/wait"})
		}
		if _, err := client.Create(t.Context(), flunder, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := core.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace says what it waits for", func(ctx context.Context) error {
		got, err := core.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == says && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", got.Status.Conditions)
	})
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetDeletionTimestamp() == nil {
		t.Fatalf("what is left of the flunders: %v, %v", list, err)
	}
	testwait.NoError(t, "the server has seen the namespace's end", func(ctx context.Context) error {
		_, err := client.Create(ctx, newFlunder("late", "a"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("create: %w", err)
		}
		return nil
	})
	if _, err := client.Patch(
		t.Context(),
		"f-0",
		types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace is gone", func(ctx context.Context) error {
		if _, err := core.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: %w", err)
		}
		return nil
	})
	if list, err := client.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("flunders after the namespace: %v, %v", list, err)
	}
	testwait.NoError(t, "nothing is created in a namespace that is gone", func(ctx context.Context) error {
		_, err := client.Create(ctx, newFlunder("later", "a"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("create: %w", err)
		}
		return nil
	})
}

func garbageCollection(t *testing.T, w *wardle) {
	ns := namespace(t)
	client, core := flunders(t, host.Admin(), ns), kubernetesClient(t).CoreV1().ConfigMaps(ns)
	configMap := func(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
		t.Helper()
		made, err := core.Create(
			t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}},
			metav1.CreateOptions{},
		)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	flunder := func(name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
		t.Helper()
		f := newFlunder(name, "a")
		f.SetOwnerReferences(owners)
		made, err := client.Create(t.Context(), f, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		block := true
		return metav1.OwnerReference{
			APIVersion:         group + "/v1alpha1",
			Kind:               "Flunder",
			Name:               name,
			UID:                made.GetUID(),
			BlockOwnerDeletion: &block,
		}
	}
	gone := func(what, name string) {
		t.Helper()
		testwait.NoError(t, "the dependent "+what+" is gone", func(ctx context.Context) error {
			var err error
			if what == "ConfigMap" {
				_, err = core.Get(ctx, name, metav1.GetOptions{})
			} else {
				_, err = client.Get(ctx, name, metav1.GetOptions{})
			}
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("get %s: %w", name, err)
			}
			return nil
		})
	}

	// The host's object owns ours.
	owner := configMap("owner")
	flunder("owned", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
	if err := core.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone("Flunder", "owned")

	// Ours owns the cluster's, and waits for it in the foreground.
	parent := flunder("parent")
	configMap("owned", parent)
	flunder("child", parent)
	foreground := metav1.DeletePropagationForeground
	if err := client.Delete(t.Context(), "parent", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	gone("Flunder", "parent")
	if _, err := client.Get(t.Context(), "child", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the child outlives its parent: %v", err)
	}
	gone("ConfigMap", "owned")

	// Orphans stay, without their owner.
	parent = flunder("parent")
	flunder("orphan", parent)
	orphan := metav1.DeletePropagationOrphan
	if err := client.Delete(t.Context(), "parent", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	gone("Flunder", "parent")
	got, err := client.Get(t.Context(), "orphan", metav1.GetOptions{})
	if err != nil || len(got.GetOwnerReferences()) != 0 {
		t.Errorf("the orphan: %v, %v", got, err)
	}
}

// The host counts objects of aggregated API servers, but does not enforce the count: an admission plugin of
// kube-apiserver does that, which these requests do not pass, and which upstream's sample does not have.
func quota(t *testing.T, w *wardle) {
	ns := namespace(t)
	client, core := flunders(t, host.Admin(), ns), kubernetesClient(t).CoreV1().ResourceQuotas(ns)
	const counted = corev1.ResourceName("count/flunders." + group)
	if _, err := core.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("2")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want int64) {
		t.Helper()
		testwait.NoError(t, fmt.Sprintf("the quota counts %d flunders", want), func(ctx context.Context) error {
			got, err := core.Get(ctx, "two", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if q, found := got.Status.Used[counted]; !found || q.Value() != want {
				return fmt.Errorf("used: %v", got.Status.Used)
			}
			return nil
		})
	}
	used(0)
	for i := range 3 {
		if _, err := client.Create(t.Context(), newFlunder(fmt.Sprintf("f-%d", i), "a"), metav1.CreateOptions{}); err != nil {
			t.Errorf("flunder %d of a quota of two: %v", i, err)
		}
	}
	// The host counts anew after a deletion, and every few minutes.
	if err := client.Delete(t.Context(), "f-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(2)
}

// webhookServer answers reviews until the test is over.
func webhookServer(
	t *testing.T,
	review func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse,
) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	authority, err := kube.NewAuthority("webhook")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(t.TempDir(), "webhook")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		var r admissionv1.AdmissionReview
		body, err := io.ReadAll(request.Body)
		if err == nil {
			err = json.Unmarshal(body, &r)
		}
		if err != nil || r.Request == nil {
			http.Error(response, fmt.Sprint("no review: ", err), http.StatusBadRequest)
			return
		}
		r.Response = review(r.Request)
		r.Response.UID, r.Request = r.Request.UID, nil
		response.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(response).Encode(r)
	})}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, cert, key) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	url := "https://" + listener.Addr().String()
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority.PEM()}
}

// flunderRules match the creation of flunders of one version: requests in other versions are converted to it.
func flunderRules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1alpha1"}, Resources: []string{"flunders"}},
	}}
}

func in(ns string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
}

func webhooks(t *testing.T, w *wardle) {
	ns := namespace(t)
	core := kubernetesClient(t).AdmissionregistrationV1()
	k := newKubectl(t, host.Admin())
	none, equivalent, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent, admissionregistrationv1.Fail
	config := webhookServer(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		patchType := admissionv1.PatchTypeJSONPatch
		var sent struct {
			APIVersion string            `json:"apiVersion"`
			Metadata   metav1.ObjectMeta `json:"metadata"`
			Spec       struct{ Reference string }
		}
		if err := json.Unmarshal(r.Object.Raw, &sent); err != nil {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error()}}
		}
		switch {
		case sent.APIVersion != group+"/v1alpha1" || r.Namespace != ns:
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "sent " + sent.APIVersion + " of " + r.Namespace}}
		case sent.Spec.Reference == "forbidden":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the webhook does not like it", Code: http.StatusTeapot}}
		}
		return &admissionv1.AdmissionResponse{
			Allowed:   true,
			PatchType: &patchType,
			Warnings:  []string{"the webhook was here"},
			Patch: []byte(
				`[{"op":"add","path":"/metadata/annotations","value":{"webhook":"` + r.UserInfo.Username +
					`"}},{"op":"replace","path":"/spec/reference","value":"patched"}]`,
			),
		}
	})
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "flunders.example.com", ClientConfig: config, Rules: flunderRules(), NamespaceSelector: in(ns), MatchPolicy: &equivalent,
			FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	if _, err := core.MutatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.MutatingWebhookConfigurations().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	testwait.NoError(t, "the server knows the webhook", func(context.Context) error {
		out, err := k.run(
			strings.Replace(fmt.Sprintf(alphaFlunder, "x"), "other", "forbidden", 1),
			"-n",
			ns,
			"create",
			"-f",
			"-",
			"--dry-run=server",
		)
		if err == nil || !strings.Contains(out, `admission webhook "flunders.example.com" denied the request: the webhook does not like it`) {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	// The webhook gets v1alpha1, and its changes there take effect in v1beta1.
	beta := strings.NewReplacer("Fischer", "Flunder", "fischer", "flunder").Replace(fmt.Sprintf(betaFlunder, "beta"))
	if out := k.given(beta, "-n", ns, "create", "-f", "-"); !strings.Contains(out, "Warning: the webhook was here") {
		t.Errorf("create: %s", out)
	}
	k.prints(
		"admin patched",
		"-n",
		ns,
		"get",
		"flunders.v1beta1.wardle.example.com",
		"beta",
		"-o",
		"jsonpath={.metadata.annotations.webhook} {.spec.flunderReference}",
	)
}

func validatingPolicy(t *testing.T, w *wardle) {
	ns := namespace(t)
	core := kubernetesClient(t).AdmissionregistrationV1()
	k := newKubectl(t, host.Admin())
	k.must("create", "configmap", "limits", "-n", ns, "--from-literal=prefix=good-")
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: matchResources(ns),
			Validations: []admissionregistrationv1.Validation{{
				Expression:        "object.spec.reference.startsWith(params.data.prefix)",
				MessageExpression: "'a reference in ' + namespaceObject.metadata.name + ' begins with ' + params.data.prefix",
			}},
		},
	}
	if _, err := core.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deny := admissionregistrationv1.DenyAction
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			ParamRef: &admissionregistrationv1.ParamRef{Name: "limits", Namespace: ns, ParameterNotFoundAction: &deny},
		},
	}
	if _, err := core.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.ValidatingAdmissionPolicyBindings().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := core.ValidatingAdmissionPolicies().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	testwait.NoError(t, "the server knows the policy", func(context.Context) error {
		out, err := k.run(fmt.Sprintf(alphaFlunder, "x"), "-n", ns, "create", "-f", "-", "--dry-run=server")
		if err == nil || !strings.Contains(out, "denied request: a reference in "+ns+" begins with good-") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	k.given(strings.Replace(fmt.Sprintf(alphaFlunder, "x"), "other", "good-one", 1), "-n", ns, "create", "-f", "-")
	// Another version is converted to the version that the policy matches.
	beta := strings.NewReplacer("Fischer", "Flunder", "fischer", "flunder").Replace(fmt.Sprintf(betaFlunder, "beta"))
	k.refused(beta, "begins with good-", "-n", ns, "create", "-f", "-")
}

func mutatingPolicy(t *testing.T, w *wardle) {
	ns := namespace(t)
	core := kubernetesClient(t).AdmissionregistrationV1()
	k := newKubectl(t, host.Admin())
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   matchResources(ns),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{
				{
					PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
						Expression: `Object{metadata: Object.metadata{labels: {"policy": "applied"}}}`,
					},
				},
			},
		},
	}
	if _, err := core.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: ns},
	}
	if _, err := core.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.MutatingAdmissionPolicyBindings().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := core.MutatingAdmissionPolicies().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	testwait.NoError(t, "the server knows the policy", func(context.Context) error {
		out, err := k.run(
			fmt.Sprintf(alphaFlunder, "x"),
			"-n",
			ns,
			"create",
			"-f",
			"-",
			"--dry-run=server",
			"-o",
			"jsonpath={.metadata.labels.policy}",
		)
		if err != nil || !strings.HasSuffix(out, "applied") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
}

func matchResources(ns string) *admissionregistrationv1.MatchResources {
	equivalent := admissionregistrationv1.Equivalent
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: in(ns), MatchPolicy: &equivalent,
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: flunderRules()[0]}},
	}
}
