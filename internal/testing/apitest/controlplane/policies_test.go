package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// configMaps matches creates of config maps.
var configMaps = admissionregistrationv1.RuleWithOperations{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
}

func TestPolicies_validate(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "short-names"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps}},
			},
			ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			Variables: []admissionregistrationv1.Variable{{Name: "longest", Expression: "int(params.data.longest)"}},
			Validations: []admissionregistrationv1.Validation{
				{Expression: "size(object.metadata.name) <= variables.longest", Message: "the name is too long"},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	params := configMap("params")
	params.Data = map[string]string{"longest": "7"}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), params, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deny := admissionregistrationv1.DenyAction
	_, err = client.AdmissionregistrationV1().
		ValidatingAdmissionPolicyBindings().
		Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "short-names"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        "short-names",
				ParamRef:          &admissionregistrationv1.ParamRef{Name: "params", Namespace: "default", ParameterNotFoundAction: &deny},
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the policy is in force", func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("much-too-long"), metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'short-names' with binding 'short-names' denied request: "+
			"the name is too long") {
			return fmt.Errorf("%w", errors.Join(errors.New("not refused"), err))
		}
		return nil
	})
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("short"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	testwait.NoError(t, "its types are checked", func(ctx context.Context) error {
		policy, err := policies.Get(ctx, "short-names", metav1.GetOptions{})
		if err == nil && (policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != 1) {
			err = fmt.Errorf("%+v", policy.Status)
		}
		return err
	})
}

func TestPolicies_typeErrors_areInStatus(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "wrong"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "object.dato.size() > 0"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the status has a warning", func(ctx context.Context) error {
		policy, err := policies.Get(ctx, "wrong", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if policy.Status.TypeChecking == nil || len(policy.Status.TypeChecking.ExpressionWarnings) != 1 ||
			!strings.Contains(policy.Status.TypeChecking.ExpressionWarnings[0].Warning, "undefined field 'dato'") {
			return fmt.Errorf("%+v", policy.Status)
		}
		return nil
	})
}

func TestPolicies_mutate(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	_, err := client.AdmissionregistrationV1().
		MutatingAdmissionPolicies().
		Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "labels"},
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps}},
				},
				ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
				Mutations: []admissionregistrationv1.Mutation{
					{
						PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
						ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
							Expression: `Object{metadata: Object.metadata{labels: {"seen": "yes"}}}`,
						},
					},
				},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.AdmissionregistrationV1().
		MutatingAdmissionPolicyBindings().
		Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "labels"},
			Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "labels"},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the policy is in force", func(ctx context.Context) error {
		made, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("a"), metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil && made.Labels["seen"] != "yes" {
			err = fmt.Errorf("labels %v", made.Labels)
		}
		return err
	})
}

// webhook serves reviews over TLS, and returns the configuration of its clients.
func webhook(
	t *testing.T,
	review func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse,
) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reviewed(w, r, review) }))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{
		URL:      &server.URL,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
}

func reviewed(w http.ResponseWriter, r *http.Request, review func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) {
	var asked admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := review(asked.Request)
	response.UID = asked.Request.UID
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: asked.TypeMeta, Response: response})
}

func TestWebhooks_validateAndMutate(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	none := admissionregistrationv1.SideEffectClassNone
	_, err := client.AdmissionregistrationV1().
		MutatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "labels"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "labels.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				Rules: []admissionregistrationv1.RuleWithOperations{configMaps},
				ClientConfig: webhook(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
					json := admissionv1.PatchTypeJSONPatch
					return &admissionv1.AdmissionResponse{
						Allowed:   true,
						PatchType: &json,
						Patch:     []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`),
					}
				}),
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.AdmissionregistrationV1().
		ValidatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "only-a"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "only-a.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				Rules:           []admissionregistrationv1.RuleWithOperations{configMaps},
				MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "not-b", Expression: "object.metadata.name != 'b'"}},
				ClientConfig: webhook(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
					return &admissionv1.AdmissionResponse{Allowed: r.Name == "a", Result: &metav1.Status{Message: "only a"}}
				}),
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create := func(ctx context.Context, name string) (*corev1.ConfigMap, error) {
		return client.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{DryRun: []string{"All"}})
	}
	testwait.NoError(t, "the webhooks are in force", func(ctx context.Context) error {
		a, err := create(ctx, "a")
		if err != nil {
			return err
		}
		if a.Labels["seen"] != "yes" {
			return fmt.Errorf("labels %v", a.Labels)
		}
		if _, err = create(
			ctx,
			"c",
		); !apierrors.IsForbidden(err) &&
			(err == nil || !strings.Contains(err.Error(), `admission webhook "only-a.example.com" denied the request: only a`)) {
			return fmt.Errorf("c: %w", errors.Join(errors.New("not refused"), err))
		}
		return nil
	})
	if _, err := create(t.Context(), "b"); err != nil {
		t.Errorf("b, of which the webhook is not asked: %v", err)
	}
}

// A webhook and a conversion that name the Service kubernetes, as in a cluster, are served by handlers of the
// server itself. The server calls them without roles, an address or authorities.
func TestWebhooks_ownHandlers(t *testing.T) {
	t.Parallel()
	server := cluster()
	callers := make(chan string, 100)
	review := func(answer func(body []byte) any) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			caller, _ := request.UserFrom(r.Context())
			callers <- caller.GetName()
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer(body))
		})
	}
	server.Handlers = []annex.Handler{
		{Path: "/hooks/refuse", Handler: review(func(body []byte) any {
			var asked admissionv1.AdmissionReview
			_ = json.Unmarshal(body, &asked)
			asked.Response = &admissionv1.AdmissionResponse{UID: asked.Request.UID, Result: &metav1.Status{Message: "not here"}}
			return asked
		})},
		{Path: "/hooks/convert", Handler: review(func(body []byte) any {
			var asked apiextensionsv1.ConversionReview
			_ = json.Unmarshal(body, &asked)
			asked.Response = &apiextensionsv1.ConversionResponse{UID: asked.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
			for _, object := range asked.Request.Objects {
				var o unstructured.Unstructured
				_ = json.Unmarshal(object.Raw, &o.Object)
				o.SetAPIVersion(asked.Request.DesiredAPIVersion)
				o.SetLabels(map[string]string{"converted": "yes"})
				asked.Response.ConvertedObjects = append(asked.Response.ConvertedObjects, runtime.RawExtension{Object: &o})
			}
			return asked
		})},
	}
	config := annextest.Start(t, server)
	client, c := kubernetes.NewForConfigOrDie(config), clientsOf(config)

	definition := widgets(sizeAndColor)
	second := definition.Spec.Versions[0].DeepCopy()
	second.Name, second.Storage = "v2", false
	definition.Spec.Versions = append(definition.Spec.Versions, *second)
	definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{
				CABundle: unknownAuthority(t),
				Service:  &apiextensionsv1.ServiceReference{Namespace: "default", Name: "kubernetes", Path: new("/hooks/convert")},
			},
		},
	}
	c.define(t, definition)
	if _, err := c.widgets.Create(t.Context(), widget("w", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	converted, err := dynamic.NewForConfigOrDie(config).
		Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v2", Resource: "widgets"}).
		Namespace("default").
		Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil || converted.GetLabels()["converted"] != "yes" {
		t.Errorf("converted to %v, %v", converted, err)
	}

	none := admissionregistrationv1.SideEffectClassNone
	if _, err := client.AdmissionregistrationV1().
		ValidatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "own"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{
					Name:                    "own.example.com",
					SideEffects:             &none,
					AdmissionReviewVersions: []string{"v1"},
					Rules:                   []admissionregistrationv1.RuleWithOperations{configMaps},
					ClientConfig: admissionregistrationv1.WebhookClientConfig{
						CABundle: unknownAuthority(t),
						Service:  &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "kubernetes", Path: new("/hooks/refuse")},
					},
				},
			},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the webhook is in force", func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("a"), metav1.CreateOptions{DryRun: []string{"All"}})
		if err == nil || !strings.Contains(err.Error(), `admission webhook "own.example.com" denied the request: not here`) {
			return fmt.Errorf("not refused: %w", errors.Join(err, errors.New("the webhook's words are missing")))
		}
		return nil
	})
	close(callers)
	for caller := range callers {
		if caller != user.APIServerUser {
			t.Errorf("asked by %q, not by the server", caller)
		}
	}
}

// unknownAuthority is an authority that is unrelated to the server.
func unknownAuthority(t *testing.T) []byte {
	t.Helper()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw})
}

func TestAdmissionPlugins_disabledByName(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: memory.Storage()}
	options.Admission.DisablePlugins = []string{"ValidatingAdmissionWebhook"}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), options))
	none, fail, nowhere := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail, "https://127.0.0.1:1/"
	_, err := client.AdmissionregistrationV1().
		ValidatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "away"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{
					Name:                    "away.example.com",
					SideEffects:             &none,
					AdmissionReviewVersions: []string{"v1"},
					FailurePolicy:           &fail,
					Rules: []admissionregistrationv1.RuleWithOperations{
						configMaps,
					},
					ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &nowhere},
				},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	options.Admission.DisablePlugins = []string{"ResourceQuotas"}
	_, err = annex.New(t.Context(), cluster(), options)
	if err == nil ||
		!strings.Contains(
			err.Error(),
			`unknown plugin "ResourceQuotas"; plugins: MutatingAdmissionPolicy, MutatingAdmissionWebhook, ValidatingAdmissionPolicy, `+
				`ValidatingAdmissionWebhook`,
		) {
		t.Errorf("a plugin that is not there: %v", err)
	}
}

func TestKinds_omittedByName(t *testing.T) {
	t.Parallel()
	server := annex.Server{
		Name:         "cluster",
		ControlPlane: controlplane.New(controlplane.Options{Without: []string{"admissionregistration.k8s.io", "secrets"}}),
	}
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, server))
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("secrets: %v", err)
	}
	if _, err := client.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().
		List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(
		err,
	) {
		t.Errorf("policies: %v", err)
	}
	server.ControlPlane = controlplane.New(controlplane.Options{Without: []string{"pods"}})
	_, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
	if err == nil || !strings.HasPrefix(err.Error(), `control plane: unknown kind "pods"; kinds that can be disabled: `) {
		t.Errorf("a kind that is not there: %v", err)
	}
}
