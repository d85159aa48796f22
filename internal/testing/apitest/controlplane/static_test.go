package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// shortNames is a policy with its binding; %s is its condition on config maps.
const shortNames = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: names.static.k8s.io}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  validations: [{expression: %s}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: names.static.k8s.io}
spec: {policyName: names.static.k8s.io, validationActions: [Deny]}
`

func shorter(than int) string {
	return fmt.Sprintf(shortNames, fmt.Sprintf("size(object.metadata.name) < %d", than))
}

// withFolder returns the options of a server whose plugin reads a folder.
func withFolder(t *testing.T, plugin, dir string) annex.Options {
	t.Helper()
	kind := strings.Replace(plugin, "ValidatingAdmissionWebhook", "WebhookAdmission", 1)
	kind = strings.Replace(kind, "MutatingAdmissionWebhook", "WebhookAdmission", 1)
	file := filepath.Join(t.TempDir(), "admission.yaml")
	replace(t, file, fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: %s
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: %sConfiguration, staticManifestsDir: %s}
`, plugin, kind, dir))
	options := annex.Options{Storage: memory.Storage()}
	options.Admission.ConfigFile = file
	return options
}

func dryRun(ctx context.Context, client kubernetes.Interface, name string) (*corev1.ConfigMap, error) {
	return client.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{DryRun: []string{"All"}})
}

// It is not parallel, because it compares metrics, which are global to the process.
func TestStaticPolicies_followFiles(t *testing.T) {
	dir := folderOf(t, map[string]string{"names.yaml": shorter(5), "README.md": "nothing"})
	server := cluster()
	server.Name = "static-policies" // the label in the metrics, which are global to the process
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, server, withFolder(t, "ValidatingAdmissionPolicy", dir)))
	const refusal = "ValidatingAdmissionPolicy 'names.static.k8s.io' with binding 'names.static.k8s.io' denied request: "
	if _, err := dryRun(t.Context(), client, "longer"); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("the first request: %v", err)
	}
	if _, err := dryRun(t.Context(), client, "four"); err != nil {
		t.Error(err)
	}
	if all, err := client.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().
		List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(all.Items) != 0 {
		t.Errorf("what is in a file is an object, too: %v, %v", all, err)
	}

	file := filepath.Join(dir, "names.yaml")
	replace(t, file, shorter(9))
	testwait.NoError(t, "the policy is that of the changed file", func(ctx context.Context) error {
		_, err := dryRun(ctx, client, "longer")
		return err
	})

	failures := func(ctx context.Context) (string, error) {
		text, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		const of = `(?m)^apiserver_manifest_admission_config_controller_automatic_reloads_total\{apiserver_id_hash="sha256:[0-9a-f]+",` +
			`plugin="ValidatingAdmissionPolicy",status="%s"\} (\d+)`
		if regexp.MustCompile(fmt.Sprintf(of, "success")).FindSubmatch(text) == nil {
			return "", errors.New("no success is counted")
		}
		if found := regexp.MustCompile(fmt.Sprintf(of, "failure")).FindSubmatch(text); found != nil {
			return string(found[1]), err
		}
		return "", err
	}
	for what, broken := range map[string]string{
		"no YAML":           "{",
		"a wrong policy":    fmt.Sprintf(shortNames, "object.metadata.name <"),
		"another's binding": strings.Replace(shorter(5), "policyName: names", "policyName: others", 1),
	} {
		before, err := failures(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		replace(t, file, broken)
		testwait.NoError(t, "a failure is counted", func(ctx context.Context) error {
			now, err := failures(ctx)
			if err == nil && now == before {
				err = fmt.Errorf("there are %q", now)
			}
			return err
		})
		if _, err := dryRun(t.Context(), client, "much-longer"); err == nil || !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: the policy of before is gone: %v", what, err)
		}
		if _, err := dryRun(t.Context(), client, "longer"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	replace(t, file, shorter(5))
	testwait.NoError(t, "the policy is that of the mended file", func(ctx context.Context) error {
		if _, err := dryRun(ctx, client, "longer"); err == nil {
			return errors.New("not refused")
		}
		return nil
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "a policy without a file is none", func(ctx context.Context) error {
		_, err := dryRun(ctx, client, "longer")
		return err
	})
}

// Policies that are API objects do not apply to objects of their own group, so that they cannot lock out their
// authors.
func TestStaticPolicies_protectPolicyObjects(t *testing.T) {
	t.Parallel()
	dir := folderOf(t, map[string]string{"deny.json": `{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "keep.static.k8s.io"}, "spec": {
			"matchConstraints": {"resourceRules": [{"apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]},
			"validations": [{"expression": "oldObject == null || oldObject.metadata.name != 'kept'", "message": "it is kept"}]}},
		{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "keep.static.k8s.io"},
			"spec": {"policyName": "keep.static.k8s.io", "validationActions": ["Deny"]}}]}`})
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), withFolder(t, "ValidatingAdmissionPolicy", dir))).
		AdmissionregistrationV1()
	kept := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := client.ValidatingWebhookConfigurations().Create(t.Context(), kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.ValidatingWebhookConfigurations().
		Delete(t.Context(), "kept", metav1.DeleteOptions{}); err == nil ||
		!strings.Contains(err.Error(), "it is kept") {
		t.Error(err)
	}
}

func TestStaticPolicies_mutate(t *testing.T) {
	t.Parallel()
	dir := folderOf(t, map[string]string{"policy.yml": `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: labels.static.k8s.io}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{metadata: Object.metadata{labels: {"seen": "yes"}}}'}
`, "binding.yaml": `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: labels.static.k8s.io}
spec: {policyName: labels.static.k8s.io}
`})
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), withFolder(t, "MutatingAdmissionPolicy", dir)))
	if made, err := dryRun(t.Context(), client, "a"); err != nil || made.Labels["seen"] != "yes" {
		t.Errorf("the first request: %v, %v", made, err)
	}
}

func TestStaticWebhooks_areCalled(t *testing.T) {
	t.Parallel()
	none := admissionregistrationv1.SideEffectClassNone
	write := func(t *testing.T, configuration any) string {
		t.Helper()
		text, err := json.Marshal(configuration)
		if err != nil {
			t.Fatal(err)
		}
		return folderOf(t, map[string]string{"webhooks.json": string(text)})
	}
	t.Run("mutating", func(t *testing.T) {
		dir := write(t, admissionregistrationv1.MutatingWebhookConfiguration{
			TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
			ObjectMeta: metav1.ObjectMeta{Name: "labels.static.k8s.io"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{
				{
					Name:                    "labels.example.com",
					SideEffects:             &none,
					AdmissionReviewVersions: []string{"v1"},
					Rules:                   []admissionregistrationv1.RuleWithOperations{configMaps},
					ClientConfig: webhook(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
						json := admissionv1.PatchTypeJSONPatch
						return &admissionv1.AdmissionResponse{
							Allowed:   true,
							PatchType: &json,
							Patch:     []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`),
						}
					}),
				},
			},
		})
		client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), withFolder(t, "MutatingAdmissionWebhook", dir)))
		if made, err := dryRun(t.Context(), client, "a"); err != nil || made.Labels["seen"] != "yes" {
			t.Errorf("the first request: %v, %v", made, err)
		}
	})
	t.Run("validating", func(t *testing.T) {
		dir := write(t, admissionregistrationv1.ValidatingWebhookConfiguration{
			TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
			ObjectMeta: metav1.ObjectMeta{Name: "only-a.static.k8s.io"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{
					Name:                    "only-a.example.com",
					SideEffects:             &none,
					AdmissionReviewVersions: []string{"v1"},
					Rules:                   []admissionregistrationv1.RuleWithOperations{configMaps},
					MatchConditions: []admissionregistrationv1.MatchCondition{
						{Name: "not-authorities", Expression: "object.metadata.name != 'kube-root-ca.crt'"},
					},
					ClientConfig: webhook(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
						return &admissionv1.AdmissionResponse{Allowed: r.Name == "a", Result: &metav1.Status{Message: "only a"}}
					}),
				},
			},
		})
		client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), withFolder(t, "ValidatingAdmissionWebhook", dir)))
		if _, err := dryRun(
			t.Context(),
			client,
			"b",
		); err == nil ||
			!strings.Contains(err.Error(), `admission webhook "only-a.example.com" denied the request: only a`) {
			t.Errorf("the first request: %v", err)
		}
		if _, err := dryRun(t.Context(), client, "a"); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(dir, "webhooks.json")); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "a webhook without a file is none", func(ctx context.Context) error {
			_, err := dryRun(ctx, client, "b")
			return err
		})
	})
}

func TestStaticAdmission_invalidFiles_areRefused(t *testing.T) {
	t.Parallel()
	const hooks = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: a.static.k8s.io}
webhooks: [{name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/"}}]
`
	edit := func(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }
	for _, test := range []struct{ what, plugin, text, want string }{
		{"no YAML", "ValidatingAdmissionPolicy", "a: b\n  c: d\n", "a.yaml: error converting YAML to JSON: yaml: line 2: mapping values are " +
			"not allowed in this context"},
		{"a field that is not there", "ValidatingAdmissionPolicy", edit(shorter(5), "validations:", "validation:"), `a.yaml: strict decoding ` +
			`error: unknown field "spec.validation"`},
		{"another kind", "ValidatingAdmissionPolicy", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}",
			`a.yaml: apiVersion "v1", kind "ConfigMap": must be ValidatingAdmissionPolicy or ValidatingAdmissionPolicyBinding of ` +
				`admissionregistration.k8s.io/v1`},
		{"a kind of another plugin", "MutatingAdmissionPolicy", shorter(5), `kind "ValidatingAdmissionPolicy": must be MutatingAdmissionPolicy ` +
			`or MutatingAdmissionPolicyBinding of`},
		{"an old version", "ValidatingAdmissionPolicy", edit(shorter(5), "k8s.io/v1", "k8s.io/v1beta1"),
			`apiVersion "admissionregistration.k8s.io/v1beta1", kind "ValidatingAdmissionPolicy": must be`},
		{"comments alone", "ValidatingAdmissionPolicy", "# later\n", "a.yaml: a document has no apiVersion or no kind"},
		{"a name of objects", "ValidatingAdmissionPolicy", edit(shorter(5), ".static.k8s.io", ""), `"names" in file "`},
		{"the ending of names", "ValidatingAdmissionPolicy", edit(shorter(5), ".static.k8s.io", ""), `must have a name ending with ` +
			`".static.k8s.io"`},
		{"no name", "ValidatingAdmissionPolicy", edit(shorter(5), "metadata: {name: names.static.k8s.io}", ""), `ValidatingAdmissionPolicy ` +
			`"": metadata.name: Required value`},
		{"a name twice", "ValidatingAdmissionPolicy", shorter(5) + "---\n" + shorter(6), `duplicate name "names.static.k8s.io" found in file "`},
		{"what the API refuses", "ValidatingAdmissionPolicy", edit(shorter(5), "validationActions: [Deny]",
			"validationActions: [Deny, Warn]"), `ValidatingAdmissionPolicyBinding "names.static.k8s.io": spec.validationActions: Invalid value: `},
		{"an expression", "ValidatingAdmissionPolicy", fmt.Sprintf(shortNames, "object.metadata.name <"), `ValidatingAdmissionPolicy ` +
			`"names.static.k8s.io": spec.validations[0].expression: Invalid value: `},
		{"a kind of parameters", "ValidatingAdmissionPolicy", edit(shorter(5), "  validations:", "  paramKind: {apiVersion: v1, kind: "+
			"ConfigMap}\n  validations:"),
			`ValidatingAdmissionPolicy "names.static.k8s.io": spec.paramKind is not supported for static manifests`},
		{"parameters", "ValidatingAdmissionPolicy", edit(shorter(5), "validationActions:", "paramRef: {name: a, namespace: b, "+
			"parameterNotFoundAction: Deny}, validationActions:"),
			`binding "names.static.k8s.io": spec.paramRef is not supported for static manifests`},
		{"a policy that is an object", "ValidatingAdmissionPolicy", edit(shorter(5), "policyName: names.static.k8s.io", "policyName: names"),
			`binding "names.static.k8s.io": spec.policyName "names" must end with ".static.k8s.io"`},
		{"a policy that is not there", "ValidatingAdmissionPolicy", edit(shorter(5), "policyName: names", "policyName: others"),
			`binding "names.static.k8s.io" references policy "others.static.k8s.io" which does not exist in the manifest directory`},
		{"a service", "ValidatingAdmissionWebhook", edit(hooks, `url: "https://127.0.0.1:1/"`, "service: {name: a, namespace: b}"),
			"clientConfig.service is not supported for static manifests; use clientConfig.url instead"},
		{"no side effects", "ValidatingAdmissionWebhook", edit(hooks, "sideEffects: None, ", ""), `ValidatingWebhookConfiguration ` +
			`"a.static.k8s.io": webhooks[0].sideEffects: Required value`},
		{"a webhook of the other kind", "MutatingAdmissionWebhook", hooks, `kind "ValidatingWebhookConfiguration": must be ` +
			`MutatingWebhookConfiguration of`},
	} {
		dir := folderOf(t, map[string]string{"a.yaml": test.text})
		_, err := annex.New(t.Context(), cluster(), withFolder(t, test.plugin, dir))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.plugin) ||
			!strings.Contains(err.Error(), dir) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: want %s\ngot %v", test.what, test.want, err)
		}
	}
	for dir, want := range map[string]string{
		"policies":                         `staticManifestsDir: Invalid value: "policies": must be an absolute file path`,
		filepath.Join(t.TempDir(), "none"): "no such file or directory",
	} {
		if _, err := annex.New(
			t.Context(),
			cluster(),
			withFolder(t, "ValidatingAdmissionPolicy", dir),
		); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}

func TestStaticAdmission_namesAreReserved(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster())).AdmissionregistrationV1()
	named := metav1.ObjectMeta{Name: "a.static.k8s.io"}
	_, hooks := client.ValidatingWebhookConfigurations().
		Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: named}, metav1.CreateOptions{})
	_, binding := client.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "a"}}, metav1.CreateOptions{})
	for _, err := range []error{hooks, binding} {
		const want = `metadata.name: Invalid value: "a.static.k8s.io": names ending with ".static.k8s.io" are reserved for static ` +
			`manifest-based configurations and cannot be managed via the API`
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}
