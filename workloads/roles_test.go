package workloads_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/workloads"
)

// rbac.Bootstrap has the objects of a kube-apiserver of the linked release.
func TestRoles_likeKubeAPIServer(t *testing.T) {
	client, _ := start(t)
	all, of, like := client.RbacV1(), metav1.ListOptions{LabelSelector: "kubernetes.io/bootstrapping=rbac-defaults"}, rbac.Bootstrap()
	var toAggregate []*rbacv1.ClusterRole
	for i := range like.ClusterRoles {
		toAggregate = append(toAggregate, &like.ClusterRoles[i])
	}
	aggregated, err := rbac.AggregateAll(toAggregate)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range like.ClusterRoles {
		if r.AggregationRule != nil {
			like.ClusterRoles[i].Rules = aggregated[r.Name]
		}
	}
	clusterRoles, err := all.ClusterRoles().List(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, clusterRoles.Items, like.ClusterRoles, func(r *rbacv1.ClusterRole) *metav1.ObjectMeta { return &r.ObjectMeta })
	clusterBindings, err := all.ClusterRoleBindings().List(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, clusterBindings.Items, like.ClusterRoleBindings, func(b *rbacv1.ClusterRoleBinding) *metav1.ObjectMeta {
		return &b.ObjectMeta
	})
	roles, err := all.Roles("").List(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, roles.Items, like.Roles, func(r *rbacv1.Role) *metav1.ObjectMeta { return &r.ObjectMeta })
	bindings, err := all.RoleBindings("").List(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, bindings.Items, like.RoleBindings, func(b *rbacv1.RoleBinding) *metav1.ObjectMeta { return &b.ObjectMeta })
}

// compare expects the wanted objects, and none beside them.
func compare[T any](t *testing.T, got, want []T, meta func(*T) *metav1.ObjectMeta) {
	t.Helper()
	found := map[string]T{}
	for _, o := range got {
		m := meta(&o)
		*m = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations}
		found[m.Namespace+"/"+m.Name] = o
	}
	for _, o := range want {
		id := meta(&o).Namespace + "/" + meta(&o).Name
		if existing, ok := found[id]; !ok {
			t.Errorf("there is no %T %s", o, id)
		} else if !apiequality.Semantic.DeepEqual(existing, o) {
			t.Errorf("%T %s is\n%+v, want\n%+v", o, id, existing, o)
		}
		delete(found, id)
	}
	for id, o := range found {
		t.Errorf("no kube-apiserver has the %T %s", o, id)
	}
}

// Roles that lack rules get them when the server starts again, and bindings of namespaces their subjects.
func TestRoles_reconciledAtTheStart(t *testing.T) {
	options := annex.Options{Storage: &memory.Store{}}
	const scheduler, locking = "system:kube-scheduler", "system::leader-locking-kube-scheduler"
	var rules []rbacv1.PolicyRule
	var subjects []rbacv1.Subject
	t.Run("first", func(t *testing.T) {
		all := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), options)).RbacV1()
		role, err := all.ClusterRoles().Get(t.Context(), scheduler, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding, err := all.RoleBindings("kube-system").Get(t.Context(), locking, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		rules, subjects, role.Rules, binding.Subjects = role.Rules, binding.Subjects, nil, nil
		if _, err := all.ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := all.RoleBindings("kube-system").Update(t.Context(), binding, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("second", func(t *testing.T) {
		all := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), options)).RbacV1()
		role, err := all.ClusterRoles().Get(t.Context(), scheduler, metav1.GetOptions{})
		if err != nil || len(role.Rules) < len(rules) {
			t.Errorf("%d rules, want %d at least: %v", len(role.Rules), len(rules), err)
		}
		binding, err := all.RoleBindings("kube-system").Get(t.Context(), locking, metav1.GetOptions{})
		if err != nil || !slices.Equal(binding.Subjects, subjects) {
			t.Errorf("subjects %v, want %v: %v", binding.Subjects, subjects, err)
		}
	})
}
