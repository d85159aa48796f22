package rbac

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// dice makes small objects, which often have parts in common.
type dice struct{ *rand.Rand }

func (d dice) some(most int, of ...string) []string {
	var all []string
	for range d.IntN(most + 1) {
		all = append(all, of[d.IntN(len(of))])
	}
	return all
}

func (d dice) rules() []rbacv1.PolicyRule {
	var all []rbacv1.PolicyRule
	for range d.IntN(4) {
		rule := rbacv1.PolicyRule{Verbs: d.some(3, "get", "list", "watch", "*")}
		if d.IntN(4) == 0 {
			rule.NonResourceURLs = d.some(3, "/", "/x", "/x/*", "/x/y", "/x/y*", "*", "/x/**")
		} else {
			rule.APIGroups = d.some(2, "", "apps", "*")
			rule.Resources = d.some(3, "pods", "pods/log", "*/log", "*", "nodes", "nodes/log/x", "/")
			rule.ResourceNames = d.some(d.IntN(3), "a", "b", "")
		}
		all = append(all, rule)
	}
	return all
}

func (d dice) one(of ...string) string { return of[d.IntN(len(of))] }

func (d dice) values(keys ...string) map[string]string {
	var all map[string]string
	for _, key := range d.some(2, keys...) {
		if all == nil {
			all = map[string]string{}
		}
		all[key] = d.one("true", "false")
	}
	return all
}

func (d dice) metadata() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: "r", Labels: d.values("a", "b"), Annotations: d.values("c", rbacv1.AutoUpdateAnnotationKey),
	}
}

// aggregation has no selector twice: of a wanted one, the library adds both.
func (d dice) aggregation() *rbacv1.AggregationRule {
	var rule *rbacv1.AggregationRule
	for _, value := range slices.Compact(d.some(2, "1", "2", "3")) {
		if rule == nil {
			rule = &rbacv1.AggregationRule{}
		}
		selector := metav1.LabelSelector{MatchLabels: map[string]string{"x": value}}
		rule.ClusterRoleSelectors = append(rule.ClusterRoleSelectors, selector)
	}
	return rule
}

func (d dice) subjects() []rbacv1.Subject {
	var all []rbacv1.Subject
	for _, name := range d.some(3, "ann", "bob", "eve") {
		all = append(all, userSubject(name))
	}
	return all
}

// tries has the numbers of random tries, and dice for each.
func tries(t *testing.T, try func(t *testing.T, d dice)) {
	t.Helper()
	t.Parallel()
	for seed := range uint64(20_000) {
		try(t, dice{rand.New(rand.NewPCG(seed, 0))})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestMissingRules_library(t *testing.T) {
	tries(t, func(t *testing.T, d dice) {
		have, want := d.rules(), d.rules()
		covers, uncovered := validation.Covers(have, want)
		if missing := missingRules(have, want); len(missing)+len(uncovered) > 0 && !reflect.DeepEqual(missing, uncovered) {
			t.Errorf("have %+v\nwant %+v\nmissing %+v\nby the library %+v", have, want, missing, uncovered)
		}
		p := NewPolicy()
		p.SetRole("", "r", have)
		p.SetBinding("", "b", clusterRole("r"), []rbacv1.Subject{userSubject("ann")})
		if err := p.Covers(t.Context(), &user.DefaultInfo{Name: "ann"}, "", want); (err == nil) != covers {
			t.Errorf("have %+v\nwant %+v\n%v, by the library %t", have, want, err, covers)
		}
	})
}

// existing is the client of a dry run: it has one object, or none.
type existing[T any] struct {
	object T
	exists bool
}

func (e existing[T]) Get(_, name string) (T, error) {
	if !e.exists {
		return e.object, apierrors.NewNotFound(rbacv1.Resource("things"), name)
	}
	return e.object, nil
}

func (existing[T]) Create(T) (T, error)                    { panic("a dry run writes nothing") }
func (existing[T]) Update(T) (T, error)                    { panic("a dry run writes nothing") }
func (existing[T]) Delete(string, string, types.UID) error { panic("a dry run writes nothing") }

// operationOf translates an operation of the library, which does not carry it out if the object is protected.
func operationOf(o reconciliation.ReconcileOperation, protected bool) Operation {
	if protected {
		return Keep
	}
	return map[reconciliation.ReconcileOperation]Operation{
		reconciliation.ReconcileNone:     Keep,
		reconciliation.ReconcileCreate:   Create,
		reconciliation.ReconcileUpdate:   Update,
		reconciliation.ReconcileRecreate: Recreate,
	}[o]
}

func TestReconcileClusterRole_library(t *testing.T) {
	tries(t, func(t *testing.T, d dice) {
		wanted := &rbacv1.ClusterRole{ObjectMeta: d.metadata(), Rules: d.rules(), AggregationRule: d.aggregation()}
		var found *rbacv1.ClusterRole
		if d.IntN(8) > 0 {
			found = &rbacv1.ClusterRole{ObjectMeta: d.metadata(), Rules: d.rules(), AggregationRule: d.aggregation()}
		}
		options := reconciliation.ReconcileRoleOptions{
			Role:   reconciliation.ClusterRoleRuleOwner{ClusterRole: wanted.DeepCopy()},
			Client: existing[reconciliation.RuleOwner]{reconciliation.ClusterRoleRuleOwner{ClusterRole: found}, found != nil},
		}
		result, err := options.Run()
		if err != nil {
			t.Fatal(err)
		}
		role, operation := ReconcileClusterRole(found, wanted)
		if want := operationOf(result.Operation, result.Protected); operation != want ||
			operation != Keep && !reflect.DeepEqual(role, result.Role.(reconciliation.ClusterRoleRuleOwner).ClusterRole) {
			t.Errorf("existing %+v\nwanted %+v\noperation %d, role %+v\nlibrary %d, role %+v",
				found, wanted, operation, role, want, result.Role.GetObject())
		}
	})
}

func TestReconcileClusterRoleBinding_library(t *testing.T) {
	tries(t, func(t *testing.T, d dice) {
		binding := func() *rbacv1.ClusterRoleBinding {
			return &rbacv1.ClusterRoleBinding{ObjectMeta: d.metadata(), RoleRef: clusterRole(d.one("r", "r", "s")), Subjects: d.subjects()}
		}
		wanted := binding()
		var found *rbacv1.ClusterRoleBinding
		if d.IntN(8) > 0 {
			found = binding()
		}
		options := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: wanted.DeepCopy()},
			Client: existing[reconciliation.RoleBinding]{
				reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: found}, found != nil,
			},
		}
		result, err := options.Run()
		if err != nil {
			t.Fatal(err)
		}
		got, operation := ReconcileClusterRoleBinding(found, wanted)
		if want := operationOf(result.Operation, result.Protected); operation != want ||
			operation != Keep && !reflect.DeepEqual(got, result.RoleBinding.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding) {
			t.Errorf("existing %+v\nwanted %+v\noperation %d, binding %+v\nlibrary %d, binding %+v",
				found, wanted, operation, got, want, result.RoleBinding.GetObject())
		}
	})
}
