package controlplane

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/annextest"
)

// A policy reads its parameters with all permissions, so its author must have these permissions, too.
func TestPolicy_params_needPermission(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	root, ctx := kubernetes.NewForConfigOrDie(config), t.Context()
	as := func(name string, rules ...rbacv1.PolicyRule) *kubernetes.Clientset {
		t.Helper()
		rules = append(
			rules,
			rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"*"}},
		)
		if _, err := root.RbacV1().
			ClusterRoles().
			Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		user := rest.CopyConfig(config)
		user.Impersonate = rest.ImpersonationConfig{UserName: name}
		return kubernetes.NewForConfigOrDie(user)
	}
	policy := func(name string, kind *admissionregistrationv1.ParamKind) *admissionregistrationv1.ValidatingAdmissionPolicy {
		return &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps}},
				},
				ParamKind:   kind,
				Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
			},
		}
	}
	binding := func(name, policy, param string) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
		deny := admissionregistrationv1.DenyAction
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: policy, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
				ParamRef: &admissionregistrationv1.ParamRef{Namespace: "default", ParameterNotFoundAction: &deny},
			},
		}
		if b.Spec.ParamRef.Name = param; param == "" {
			b.Spec.ParamRef.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}
		return b
	}
	var (
		writer   = as("writer")
		reader   = as("reader", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}})
		secrets  = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "Secret"}
		unknown  = &admissionregistrationv1.ParamKind{APIVersion: "shop.example.com/v1", Kind: "Secret"}
		policies = func(c *kubernetes.Clientset, p *admissionregistrationv1.ValidatingAdmissionPolicy) error {
			_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, p, metav1.CreateOptions{})
			return err
		}
		bindings = func(c *kubernetes.Clientset, b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) error {
			_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, b, metav1.CreateOptions{})
			return err
		}
	)
	for _, test := range []struct {
		what   string
		err    error
		refuse string // empty if it is allowed
	}{
		{"a policy of its own", policies(writer, policy("plain", nil)), ""},
		{"a policy with secrets", policies(writer, policy("peek", secrets)), `spec.paramKind: Forbidden: user &{writer  ` +
			`[system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`},
		{"by one who reads them", policies(reader, policy("secrets", secrets)), ""},
		{"a policy with a kind that is not there", policies(reader, policy("unknown", unknown)), `(kind=Secret, apiVersion=shop.example.com/v1)`},
		{"by an administrator", policies(root, policy("unknown", unknown)), ""},
		{"a binding to a secret", bindings(writer, binding("peek", "secrets", "s")), `spec.paramRef: Forbidden: user &{writer  ` +
			`[system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef`},
		{"to one that may be read", bindings(reader, binding("named", "secrets", "s")), ""},
		{"to those that a selector matches", bindings(reader, binding("selected", "secrets", "")), `does not have "list" permission on ` +
			`the object`},
		{"of a policy that is not there", bindings(reader, binding("early", "later", "s")), `unable to get policy later to determine minimum ` +
			`required permissions and user &{reader  [system:authenticated] map[]} does not have "get" permission for all groups, versions and ` +
			`resources`},
		{"of a kind that is not there", bindings(reader, binding("strange", "unknown", "s")), "unable to resolve paramKind"},
		{"by an administrator", bindings(root, binding("early", "later", "s")), ""},
	} {
		switch {
		case test.refuse == "" && test.err != nil:
			t.Errorf("%s: %v", test.what, test.err)
		case test.refuse != "" && (!apierrors.IsInvalid(test.err) || !strings.Contains(test.err.Error(), test.refuse)):
			t.Errorf("%s: %v instead of %s", test.what, test.err, test.refuse)
		}
	}
	// A change that keeps the parameters is not authorized again.
	theirs, err := writer.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, "secrets", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	theirs.Spec.Validations[0].Message = "no"
	if theirs, err = writer.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(ctx, theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	theirs.Spec.ParamKind = unknown
	if _, err = writer.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().
		Update(ctx, theirs, metav1.UpdateOptions{}); !apierrors.IsInvalid(
		err,
	) {
		t.Errorf("other parameters: %v", err)
	}
}
