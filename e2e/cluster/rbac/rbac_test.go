package rbac

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const (
	bootstrapFile = "../../../internal/identity/rbac/zz_generated.bootstrap.go"
	invalidFile   = "../../../internal/identity/rbac/testdata/invalid.yaml"
)

var bootstrapped = metav1.ListOptions{LabelSelector: "kubernetes.io/bootstrapping=rbac-defaults"}

// The file has the objects that a kube-apiserver creates. UPDATE=1 writes it.
func TestBootstrapObjects(t *testing.T) {
	ctx := t.Context()
	settled(t)
	there := rbac.BootstrapObjects{}
	client := admin.RbacV1()
	clusterRoles, err := client.ClusterRoles().List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterRoles.Items {
		role := rbacv1.ClusterRole{ObjectMeta: plain(o.ObjectMeta), Rules: o.Rules, AggregationRule: o.AggregationRule}
		if role.AggregationRule != nil {
			role.Rules = nil // the controller's; kube-apiserver creates it without rules
		}
		there.ClusterRoles = append(there.ClusterRoles, role)
	}
	clusterRoleBindings, err := client.ClusterRoleBindings().List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterRoleBindings.Items {
		there.ClusterRoleBindings = append(
			there.ClusterRoleBindings,
			rbacv1.ClusterRoleBinding{ObjectMeta: plain(o.ObjectMeta), RoleRef: o.RoleRef, Subjects: o.Subjects},
		)
	}
	roles, err := client.Roles("").List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range roles.Items {
		there.Roles = append(there.Roles, rbacv1.Role{ObjectMeta: plain(o.ObjectMeta), Rules: o.Rules})
	}
	roleBindings, err := client.RoleBindings("").List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range roleBindings.Items {
		there.RoleBindings = append(
			there.RoleBindings,
			rbacv1.RoleBinding{ObjectMeta: plain(o.ObjectMeta), RoleRef: o.RoleRef, Subjects: o.Subjects},
		)
	}
	want, err := literal(&there)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, bootstrapFile, want)
}

// plain returns the metadata that kube-apiserver sets, without computed fields.
func plain(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, Labels: m.Labels, Annotations: m.Annotations}
}

func compare(t *testing.T, file string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		have, now := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range now {
			if i >= len(have) || have[i] != now[i] {
				t.Fatalf("%s differs from line %d: kube-apiserver has %q; make bootstrap-roles", file, i+1, now[i])
			}
		}
		t.Fatalf("%s has more than kube-apiserver; make bootstrap-roles", file)
	}
}

// settled waits until the aggregated roles have the rules that AggregateAll computes.
func settled(t *testing.T) {
	t.Helper()
	testwait.NoError(t, "aggregated roles are settled", func(ctx context.Context) error {
		list, err := admin.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var all []*rbacv1.ClusterRole
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		if len(all) < 50 {
			return fmt.Errorf("%d roles", len(all))
		}
		rules, err := rbac.AggregateAll(all)
		if err != nil {
			return err
		}
		for _, role := range all {
			if want, ok := rules[role.Name]; ok && !equality.Semantic.DeepEqual(role.Rules, want) {
				return fmt.Errorf("%s has %d rules, not %d, or others", role.Name, len(role.Rules), len(want))
			}
		}
		return nil
	})
}

// The controller aggregates roles like AggregateAll, in the same order.
func TestAggregateAll(t *testing.T) {
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{resource}}
	}
	role := func(name, level string, selects []string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		r := rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"level": level}}, Rules: rules}
		for _, level := range selects {
			if r.AggregationRule == nil {
				r.AggregationRule = &rbacv1.AggregationRule{}
			}
			r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "level", Operator: metav1.LabelSelectorOpIn, Values: []string{level}}},
			})
		}
		return r
	}
	for _, r := range []rbacv1.ClusterRole{
		role("test:c", "1", nil, rule("c"), rule("shared")), role("test:b", "1", nil, rule("b"), rule("shared")),
		role("test:a", "2", nil, rule("a")),
		role("test:all", "all", []string{"2", "1", "middle"}), role("test:middle", "middle", []string{"1", "middle", "none"}),
		role("test:top", "top", []string{"all", "2"}),
	} {
		if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = admin.RbacV1().ClusterRoles().Delete(context.WithoutCancel(t.Context()), r.Name, metav1.DeleteOptions{})
		})
	}
	settled(t)
	top, err := admin.RbacV1().ClusterRoles().Get(t.Context(), "test:top", metav1.GetOptions{})
	if err != nil || len(top.Rules) != 4 {
		t.Errorf("%+v, %v", top.Rules, err)
	}
	// A rule removed below is removed above.
	if err := admin.RbacV1().ClusterRoles().Delete(t.Context(), "test:c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settled(t)
}

// invalid is an object with the errors that kube-apiserver reports.
type invalid struct {
	Name   string         `json:"name"`
	Kind   string         `json:"kind"`
	Old    map[string]any `json:"old,omitempty"`
	Object map[string]any `json:"object"`
	Errors []string       `json:"errors,omitempty"`
}

// The file has kube-apiserver's errors for objects, for the tests of the package. UPDATE=1 writes it.
func TestInvalidObjects(t *testing.T) {
	text, err := os.ReadFile(invalidFile)
	if err != nil {
		t.Fatal(err)
	}
	var all []invalid
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		o := &all[i]
		path := map[string]string{"Role": "namespaces/default/roles", "RoleBinding": "namespaces/default/rolebindings",
			"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}[o.Kind]
		path = "/apis/rbac.authorization.k8s.io/v1/" + path
		write := func(verb, path string, object map[string]any, options ...string) error {
			body := maps.Clone(object)
			body["apiVersion"], body["kind"] = "rbac.authorization.k8s.io/v1", o.Kind
			encoded, err := yaml.Marshal(body)
			if err != nil {
				return err
			}
			if encoded, err = yaml.YAMLToJSON(encoded); err != nil {
				return err
			}
			request := admin.RbacV1().RESTClient().Verb(verb).AbsPath(path).Body(encoded).SetHeader("Content-Type", "application/json")
			for _, option := range options {
				request.Param("dryRun", option)
			}
			return request.Do(t.Context()).Error()
		}
		if o.Old == nil {
			err = write("POST", path, o.Object, "All")
		} else {
			if err := write("POST", path, o.Old); err != nil {
				t.Fatalf("%s: %v", o.Name, err)
			}
			named := path + "/" + o.Old["metadata"].(map[string]any)["name"].(string)
			err = write("PUT", named, o.Object, "All")
			if err := admin.RbacV1().RESTClient().Delete().AbsPath(named).Do(t.Context()).Error(); err != nil {
				t.Fatalf("%s: %v", o.Name, err)
			}
		}
		status := apierrors.APIStatus(nil)
		if o.Errors = nil; err != nil {
			if !errors.As(err, &status) || status.Status().Details == nil || status.Status().Reason != metav1.StatusReasonInvalid {
				t.Fatalf("%s: %v", o.Name, err)
			}
			for _, cause := range status.Status().Details.Causes {
				o.Errors = append(o.Errors, fmt.Sprintf("%s: %s: %s", cause.Type, cause.Field, cause.Message))
			}
		}
		slices.Sort(o.Errors)
	}
	want, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, invalidFile, want)
}
