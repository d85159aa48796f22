package rbac

import (
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Operation is what to do for an object to say at least what is wanted.
type Operation int

const (
	Keep     Operation = iota // it does, or its annotation forbids that it is touched
	Create                    // there is none
	Update                    // of the one that exists
	Recreate                  // it has to be deleted first, for what differs cannot be updated
)

// Objects with this annotation are the operator's if its value is "false".
func isProtected(m *metav1.ObjectMeta) bool {
	return m.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false"
}

// ReconcileClusterRole returns what to do at the start of a server with a bootstrap role, and the object to write, which is
// new. An existing role, or nil, gets the labels, annotations, rules and selectors of aggregation that it lacks, and loses
// nothing but an aggregation rule that is not wanted at all. Rules are added in their least parts.
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

// ReconcileRole is ReconcileClusterRole for a role of a namespace.
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

// ReconcileClusterRoleBinding is ReconcileClusterRole for a binding: it gets the subjects that it lacks. One that refers to
// another role is created anew.
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

// complete adds labels and annotations. Values that are there already are kept.
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
