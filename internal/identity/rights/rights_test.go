package rights

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/model/define"
)

func TestBootstrapNames_likeKubeAPIServer(t *testing.T) {
	t.Parallel()
	all := rbac.Bootstrap()
	for _, name := range bootstrapNames {
		if !slices.ContainsFunc(all.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == name }) {
			t.Errorf("kube-apiserver has no ClusterRole %s", name)
		}
	}
	own := bootstrapOfServer(&define.Server{})
	for _, b := range own.ClusterRoleBindings {
		if !slices.ContainsFunc(own.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == b.RoleRef.Name }) {
			t.Errorf("the binding %s has no role", b.Name)
		}
	}
	if len(own.ClusterRoles) != 13 || len(own.ClusterRoleBindings) != 6 {
		t.Errorf("%d ClusterRoles and %d bindings", len(own.ClusterRoles), len(own.ClusterRoleBindings))
	}
}

func TestBootstrapOfServer_controllers(t *testing.T) {
	t.Parallel()
	own := bootstrapOfServer(&define.Server{Plane: &define.Plane{
		Controllers: []define.Controller{{Name: "a", Account: "root-ca-cert-publisher"}, {Name: "b"}},
	}})
	for _, name := range []string{"system:controller:root-ca-cert-publisher", "system:kube-controller-manager"} {
		if !slices.ContainsFunc(own.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == name }) ||
			!slices.ContainsFunc(own.ClusterRoleBindings, func(b rbacv1.ClusterRoleBinding) bool { return b.Name == name }) {
			t.Errorf("there is no %s", name)
		}
	}
	if len(own.ClusterRoles) != 15 {
		t.Errorf("%d ClusterRoles", len(own.ClusterRoles))
	}
}

func TestGranted(t *testing.T) {
	t.Parallel()
	definition := &define.Server{Groups: []define.Group{
		{Name: "shop.example.com", Kinds: []*define.Kind{
			{Resource: "orders", Status: true, DefaultRoles: true, Versions: []*define.Version{{}}},
			{
				Resource:     "carts",
				DefaultRoles: true,
				Versions:     []*define.Version{{}},
				Grants:       []define.Grant{{Role: "clerk", Verbs: []string{"get"}}},
			},
		}},
		{Name: "quiet.example.com", Kinds: []*define.Kind{{Resource: "things", Versions: []*define.Version{{}}}}},
	}}
	got := map[string][]rbacv1.PolicyRule{}
	for _, role := range granted(definition) {
		got[role.Name] = role.Rules
		if label := role.Labels["rbac.authorization.k8s.io/aggregate-to-view"]; (label == "true") != (role.Name == "shop.example.com:aggregate-to-view") {
			t.Errorf("%s has the label %q", role.Name, label)
		}
	}
	groups := []string{"shop.example.com"}
	for name, want := range map[string][]rbacv1.PolicyRule{
		"shop.example.com:aggregate-to-view": {
			{APIGroups: groups, Resources: []string{"orders", "carts"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: groups, Resources: []string{"orders/status"}, Verbs: []string{"get"}},
		},
		"shop.example.com:aggregate-to-edit": {{APIGroups: groups, Resources: []string{"orders", "carts"},
			Verbs: []string{"create", "delete", "deletecollection", "patch", "update"}}},
		"shop.example.com:aggregate-to-admin": {{APIGroups: groups, Resources: []string{"orders", "carts"},
			Verbs: []string{"create", "delete", "deletecollection", "patch", "update"}}},
		"shop.example.com:clerk": {{APIGroups: groups, Resources: []string{"carts"}, Verbs: []string{"get"}}},
	} {
		if !slices.EqualFunc(got[name], want, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d roles: %v", len(got), got)
	}
}

func TestReplaceGranted(t *testing.T) {
	t.Parallel()
	wanted := clusterRole(
		"shop.example.com",
		"view",
		[]rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"shop.example.com"}, Resources: []string{"orders"}}},
	)
	existing := wanted.DeepCopy()
	existing.ResourceVersion = "7"
	if _, operation := replaceGranted(existing, wanted); operation != rbac.Keep {
		t.Errorf("the same: %v", operation)
	}
	existing.Rules = append(existing.Rules, rbacv1.PolicyRule{Verbs: []string{"delete"}})
	metav1.SetMetaDataLabel(&existing.ObjectMeta, "team", "a")
	obj, operation := replaceGranted(existing, wanted)
	role, ok := obj.(*rbacv1.ClusterRole)
	if operation != rbac.Update || !ok || len(role.Rules) != 1 || role.Labels["team"] != "a" || role.ResourceVersion != "7" {
		t.Errorf("with more: %v %v", operation, obj)
	}
	existing.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	if _, operation := replaceGranted(existing, wanted); operation != rbac.Keep {
		t.Errorf("that must not be updated: %v", operation)
	}
}
