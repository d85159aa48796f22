package rbac

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Operation is the step that brings an object to at least its wanted content.
type Operation int

const (
	Keep     Operation = iota // the object is sufficient, or its annotation forbids updates
	Create                    // the object does not exist
	Update                    // the object exists and is updated
	Recreate                  // the object has to be deleted first, because the difference is in an immutable field
)

// isProtected reports whether an object belongs to the operator, because its annotation has the value "false".
func isProtected(m *metav1.ObjectMeta) bool {
	return m.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false"
}

// ReconcileClusterRole compares a bootstrap role with the existing one, which may be nil, at the start of a server.
// It returns the operation and a new object to write. The existing role gets the labels, annotations, rules and
// aggregation selectors that it lacks. It loses nothing, except its aggregation rule if wanted has none. Rules are
// added as atoms.
func ReconcileClusterRole(existing, wanted *rbacv1.ClusterRole) (*rbacv1.ClusterRole, Operation) {
	if existing == nil {
		return wanted.DeepCopy(), Create
	}
	if isProtected(&existing.ObjectMeta) {
		return nil, Keep
	}
	role, want := existing.DeepCopy(), wanted.DeepCopy()
	complete(&role.ObjectMeta, &want.ObjectMeta)
	role.Rules = append(role.Rules, missingRules(role.Rules, want.Rules)...)
	role.AggregationRule = completeAggregation(role.AggregationRule, want.AggregationRule)
	if equality.Semantic.DeepEqual(role, existing) {
		return nil, Keep
	}
	return role, Update
}

// ReconcileRole is like ReconcileClusterRole, for a Role.
func ReconcileRole(existing, wanted *rbacv1.Role) (*rbacv1.Role, Operation) {
	if existing == nil {
		return wanted.DeepCopy(), Create
	}
	if isProtected(&existing.ObjectMeta) {
		return nil, Keep
	}
	role, want := existing.DeepCopy(), wanted.DeepCopy()
	complete(&role.ObjectMeta, &want.ObjectMeta)
	role.Rules = append(role.Rules, missingRules(role.Rules, want.Rules)...)
	if equality.Semantic.DeepEqual(role, existing) {
		return nil, Keep
	}
	return role, Update
}

// ReconcileClusterRoleBinding is like ReconcileClusterRole, for a binding, which gets the subjects that it lacks. A
// binding with another role is recreated.
func ReconcileClusterRoleBinding(existing, wanted *rbacv1.ClusterRoleBinding) (*rbacv1.ClusterRoleBinding, Operation) {
	if existing == nil {
		return wanted.DeepCopy(), Create
	}
	if isProtected(&existing.ObjectMeta) {
		return nil, Keep
	}
	if existing.RoleRef != wanted.RoleRef {
		return wanted.DeepCopy(), Recreate
	}
	binding, want := existing.DeepCopy(), wanted.DeepCopy()
	complete(&binding.ObjectMeta, &want.ObjectMeta)
	binding.Subjects = completeSubjects(binding.Subjects, want.Subjects)
	if equality.Semantic.DeepEqual(binding, existing) {
		return nil, Keep
	}
	return binding, Update
}

// ReconcileRoleBinding is like ReconcileClusterRoleBinding, for a RoleBinding, which has the same fields.
func ReconcileRoleBinding(existing, wanted *rbacv1.RoleBinding) (*rbacv1.RoleBinding, Operation) {
	binding, operation := ReconcileClusterRoleBinding((*rbacv1.ClusterRoleBinding)(existing), (*rbacv1.ClusterRoleBinding)(wanted))
	return (*rbacv1.RoleBinding)(binding), operation
}

// complete adds missing labels and annotations. Existing values are kept.
func complete(m, wanted *metav1.ObjectMeta) {
	m.Labels = completeMap(m.Labels, wanted.Labels)
	m.Annotations = completeMap(m.Annotations, wanted.Annotations)
}

func completeMap(m, wanted map[string]string) map[string]string {
	all := maps.Clone(wanted)
	if all == nil {
		return m
	}
	maps.Copy(all, m)
	return all
}

func completeAggregation(rule, wanted *rbacv1.AggregationRule) *rbacv1.AggregationRule {
	if rule == nil || wanted == nil {
		return wanted
	}
	for _, selector := range wanted.ClusterRoleSelectors {
		same := func(s metav1.LabelSelector) bool { return equality.Semantic.DeepEqual(s, selector) }
		if !slices.ContainsFunc(rule.ClusterRoleSelectors, same) {
			rule.ClusterRoleSelectors = append(rule.ClusterRoleSelectors, selector)
		}
	}
	return rule
}

func completeSubjects(subjects, wanted []rbacv1.Subject) []rbacv1.Subject {
	for _, s := range wanted {
		if !slices.Contains(subjects, s) {
			subjects = append(subjects, s)
		}
	}
	return subjects
}
