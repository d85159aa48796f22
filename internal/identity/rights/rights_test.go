package rights

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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

func TestBootstrapOfServer_roles(t *testing.T) {
	t.Parallel()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	inSystem := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "kube-system", Name: name} }
	further := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"new.example.com"}, Resources: []string{"things"}}}
	before := bootstrapOfServer(&define.Server{Plane: &define.Plane{}})
	after := bootstrapOfServer(&define.Server{Plane: &define.Plane{Roles: func() []runtime.Object {
		return []runtime.Object{
			&rbacv1.ClusterRole{ObjectMeta: named("system:node"), Rules: further},
			&rbacv1.ClusterRole{ObjectMeta: named("system:aggregate-to-view"), Rules: further},
			&rbacv1.ClusterRoleBinding{ObjectMeta: named("system:node")},
			&rbacv1.ClusterRoleBinding{ObjectMeta: named("cluster-admin"), Subjects: []rbacv1.Subject{{Kind: "User", Name: "eve"}}},
			&rbacv1.Role{ObjectMeta: inSystem(authenticationReader), Rules: further},
			&rbacv1.Role{ObjectMeta: inSystem("r"), Rules: further},
			&rbacv1.RoleBinding{ObjectMeta: inSystem("r")},
		}
	}}})
	if len(after.ClusterRoles) != len(before.ClusterRoles)+1 || len(after.ClusterRoleBindings) != len(before.ClusterRoleBindings)+1 ||
		len(after.Roles) != len(before.Roles)+1 || len(after.RoleBindings) != 1 {
		t.Errorf("%d ClusterRoles, %d bindings, %d Roles, %d bindings",
			len(after.ClusterRoles), len(after.ClusterRoleBindings), len(after.Roles), len(after.RoleBindings))
	}
	for i, r := range before.ClusterRoles {
		want := r.Rules
		if r.Name == "system:aggregate-to-view" {
			want = slices.Concat(want, further)
		}
		if got := after.ClusterRoles[i]; got.Name != r.Name || !apiequality.Semantic.DeepEqual(got.Rules, want) {
			t.Errorf("%s became %s with %d rules, want %d", r.Name, got.Name, len(got.Rules), len(want))
		}
	}
	if !apiequality.Semantic.DeepEqual(before.ClusterRoleBindings, after.ClusterRoleBindings[:len(before.ClusterRoleBindings)]) {
		t.Errorf("own bindings have changed: %v", after.ClusterRoleBindings)
	}
	if !apiequality.Semantic.DeepEqual(before.Roles, after.Roles[:len(before.Roles)]) {
		t.Errorf("own Roles have changed: %v", after.Roles)
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
