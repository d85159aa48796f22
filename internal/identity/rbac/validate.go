package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRole returns the errors of a Role whose defaults have been set. All functions in this file use the paths,
// types and messages of kube-apiserver.
func ValidateRole(role *rbacv1.Role) field.ErrorList {
	return append(validateMeta(&role.ObjectMeta, true), validateRules(role.Rules, true)...)
}

// ValidateRoleUpdate returns the errors of an updated Role.
func ValidateRoleUpdate(role, old *rbacv1.Role) field.ErrorList {
	return append(ValidateRole(role), validateMetaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
}

// ValidateClusterRole returns the errors of a ClusterRole.
func ValidateClusterRole(role *rbacv1.ClusterRole) field.ErrorList {
	return validateClusterRole(role, false)
}

// ValidateClusterRoleUpdate returns the errors of an updated ClusterRole. If the selectors of old contain invalid
// label values, the new ones may contain such values, too.
func ValidateClusterRoleUpdate(role, old *rbacv1.ClusterRole) field.ErrorList {
	lenient := len(validateSelectors(old.AggregationRule, false)) > 0
	return append(validateClusterRole(role, lenient), validateMetaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
}

func validateClusterRole(role *rbacv1.ClusterRole, lenient bool) field.ErrorList {
	return slices.Concat(
		validateMeta(&role.ObjectMeta, false),
		validateRules(role.Rules, false),
		validateAggregation(role.AggregationRule, lenient),
	)
}

// ValidateRoleBinding returns the errors of a RoleBinding.
func ValidateRoleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	return slices.Concat(
		validateMeta(&b.ObjectMeta, true),
		validateRoleRef(b.RoleRef, kindRole, kindClusterRole),
		validateSubjects(b.Subjects, true),
	)
}

// ValidateRoleBindingUpdate returns the errors of an updated RoleBinding.
func ValidateRoleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	return slices.Concat(
		ValidateRoleBinding(b),
		validateMetaUpdate(&b.ObjectMeta, &old.ObjectMeta),
		validateSameRoleRef(b.RoleRef, old.RoleRef),
	)
}

// ValidateClusterRoleBinding returns the errors of a ClusterRoleBinding.
func ValidateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	return slices.Concat(validateMeta(&b.ObjectMeta, false), validateRoleRef(b.RoleRef, kindClusterRole), validateSubjects(b.Subjects, false))
}

// ValidateClusterRoleBindingUpdate returns the errors of an updated ClusterRoleBinding.
func ValidateClusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return slices.Concat(
		ValidateClusterRoleBinding(b),
		validateMetaUpdate(&b.ObjectMeta, &old.ObjectMeta),
		validateSameRoleRef(b.RoleRef, old.RoleRef),
	)
}

// ValidateName returns the errors of the name of a role or binding. Unlike most names, it may contain colons and
// upper case.
func ValidateName(name string, _ bool) []string { return content.IsPathSegmentName(name) }

func validateMeta(m *metav1.ObjectMeta, namespaced bool) field.ErrorList {
	path := field.NewPath("metadata")
	return append(validation.ValidateObjectMeta(m, namespaced, ValidateName, path), validateFinalizers(m, path)...)
}

func validateMetaUpdate(m, old *metav1.ObjectMeta) field.ErrorList {
	path := field.NewPath("metadata")
	return append(validation.ValidateObjectMetaUpdate(m, old, path), validateFinalizers(m, path)...)
}

// validateFinalizers accepts qualified names and the finalizers of Kubernetes itself.
func validateFinalizers(m *metav1.ObjectMeta, path *field.Path) (errs field.ErrorList) {
	own := []string{"kubernetes", metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	for i, name := range m.Finalizers {
		if !strings.Contains(name, "/") && !slices.Contains(own, name) {
			errs = append(
				errs,
				field.Invalid(path.Child("finalizers").Index(i), name, "name is neither a standard finalizer name nor is it fully qualified"),
			)
		}
	}
	return errs
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) (errs field.ErrorList) {
	for i := range rules {
		errs = append(errs, validateRule(&rules[i], namespaced, field.NewPath("rules").Index(i))...)
	}
	return errs
}

// validateRule reports errors of verbs last, like kube-apiserver.
func validateRule(rule *rbacv1.PolicyRule, namespaced bool, path *field.Path) field.ErrorList {
	errs := validateTargets(rule, namespaced, path)
	if len(rule.Verbs) == 0 {
		errs = append(errs, field.Required(path.Child("verbs"), ""))
	}
	return errs
}

// validateTargets validates the resources or the paths of a rule.
func validateTargets(rule *rbacv1.PolicyRule, namespaced bool, path *field.Path) (errs field.ErrorList) {
	if len(rule.NonResourceURLs) > 0 {
		urls := path.Child("nonResourceURLs")
		if namespaced {
			errs = append(errs, field.Invalid(urls, rule.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
		}
		if len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(urls, rule.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(rule.APIGroups) == 0 {
		errs = append(errs, field.Required(path.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(rule.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}

func validateAggregation(rule *rbacv1.AggregationRule, lenient bool) field.ErrorList {
	if rule == nil {
		return nil
	}
	if len(rule.ClusterRoleSelectors) == 0 {
		return field.ErrorList{field.Required(selectorsPath(), "at least one clusterRoleSelector required if aggregationRule is non-nil")}
	}
	errs := validateSelectors(rule, lenient)
	for i := range rule.ClusterRoleSelectors {
		if selector, err := metav1.LabelSelectorAsSelector(&rule.ClusterRoleSelectors[i]); err != nil {
			errs = append(errs, field.Invalid(selectorsPath().Index(i), selector, "invalid label selector."))
		}
	}
	return errs
}

func validateSelectors(rule *rbacv1.AggregationRule, lenient bool) (errs field.ErrorList) {
	if rule == nil {
		return nil
	}
	options := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lenient}
	for i := range rule.ClusterRoleSelectors {
		errs = append(errs, metav1validation.ValidateLabelSelector(&rule.ClusterRoleSelectors[i], options, selectorsPath().Index(i))...)
	}
	return errs
}

func selectorsPath() *field.Path { return field.NewPath("aggregationRule", "clusterRoleSelectors") }

func validateRoleRef(ref rbacv1.RoleRef, kinds ...string) (errs field.ErrorList) {
	path := field.NewPath("roleRef")
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(path.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	if !slices.Contains(kinds, ref.Kind) {
		errs = append(errs, field.NotSupported(path.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		return append(errs, field.Required(path.Child("name"), ""))
	}
	for _, msg := range ValidateName(ref.Name, false) {
		errs = append(errs, field.Invalid(path.Child("name"), ref.Name, msg))
	}
	return errs
}

// shownRoleRef formats a role reference as kube-apiserver does, whose internal type has these field names.
type shownRoleRef struct{ APIGroup, Kind, Name string }

func validateSameRoleRef(ref, old rbacv1.RoleRef) field.ErrorList {
	return validation.ValidateImmutableField(shownRoleRef(ref), shownRoleRef(old), field.NewPath("roleRef"))
}

func validateSubjects(subjects []rbacv1.Subject, namespaced bool) (errs field.ErrorList) {
	for i := range subjects {
		errs = append(errs, validateSubject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s *rbacv1.Subject, namespaced bool, path *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	group := rbacv1.GroupName
	switch s.Kind {
	case rbacv1.UserKind, rbacv1.GroupKind:
	case rbacv1.ServiceAccountKind:
		group = ""
		if s.Name != "" {
			for _, msg := range validation.ValidateServiceAccountName(s.Name, false) {
				errs = append(errs, field.Invalid(path.Child("name"), s.Name, msg))
			}
		}
	default:
		return append(
			errs,
			field.NotSupported(path.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}),
		)
	}
	if s.APIGroup != group {
		errs = append(errs, field.NotSupported(path.Child("apiGroup"), s.APIGroup, []string{group}))
	}
	if s.Kind == rbacv1.ServiceAccountKind && !namespaced && s.Namespace == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	return errs
}
