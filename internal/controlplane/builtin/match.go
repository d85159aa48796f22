package builtin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// identifier matches CEL identifiers, except for reservedWords.
var (
	identifier    = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	reservedWords = []string{
		"true",
		"false",
		"null",
		"in",
		"as",
		"break",
		"const",
		"continue",
		"else",
		"for",
		"function",
		"if",
		"import",
		"let",
		"loop",
		"package",
		"namespace",
		"return",
		"var",
		"void",
		"while",
	}
)

var operations = []admissionregistrationv1.OperationType{
	admissionregistrationv1.OperationAll,
	admissionregistrationv1.Connect,
	admissionregistrationv1.Create,
	admissionregistrationv1.Delete,
	admissionregistrationv1.Update,
}

func fillRule(r *admissionregistrationv1.Rule) {
	if r.Scope == nil {
		r.Scope = new(admissionregistrationv1.AllScopes)
	}
}

// validateRules validates the rules that select the requests of a webhook.
func validateRules(rules []admissionregistrationv1.RuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		errs = append(errs, validateRule(&rules[i], at.Index(i))...)
	}
	return errs
}

func validateRule(r *admissionregistrationv1.RuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(at.Child("operations"), ""))
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionregistrationv1.OperationAll) {
		errs = append(errs, field.Invalid(at.Child("operations"), r.Operations, only("*", "operations")))
	}
	for i, o := range r.Operations {
		errs = append(errs, oneOf(&o, false, at.Child("operations").Index(i), operations...)...)
	}
	list := func(name, called string, values []string, empty bool) {
		at := at.Child(name)
		if len(values) == 0 {
			errs = append(errs, field.Required(at, ""))
		}
		if len(values) > 1 && slices.Contains(values, "*") {
			errs = append(errs, field.Invalid(at, values, only("*", called)))
		}
		for i, v := range values {
			if v == "" && !empty {
				errs = append(errs, field.Required(at.Index(i), ""))
			}
		}
	}
	list("apiGroups", "API groups", r.APIGroups, true)
	list("apiVersions", "API versions", r.APIVersions, false)
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), ""))
	} else {
		errs = append(errs, validateResources(r.Resources, at.Child("resources"))...)
	}
	if r.Scope != nil {
		errs = append(
			errs,
			oneOf(
				r.Scope,
				false,
				at.Child("scope"),
				admissionregistrationv1.AllScopes,
				admissionregistrationv1.ClusterScope,
				admissionregistrationv1.NamespacedScope,
			)...)
	}
	return errs
}

// validateResources rejects resources that other entries include: */* includes all of them, */x the subresource x of
// all resources, and x/* all subresources of x.
func validateResources(resources []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	allOf, ofAll := map[string]bool{}, map[string]bool{}
	plain := false
	for i, r := range resources {
		if r == "" {
			errs = append(errs, field.Required(at.Index(i), ""))
			continue
		}
		resource, sub, ok := strings.Cut(r, "/")
		if !ok {
			plain = r != "*" // that of the last entry, as in kube-apiserver
			continue
		}
		if allOf[resource] {
			errs = append(errs, field.Invalid(at.Index(i), r, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, r)))
		}
		if ofAll[sub] {
			errs = append(errs, field.Invalid(at.Index(i), r, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, r)))
		}
		allOf[resource] = allOf[resource] || sub == "*"
		ofAll[sub] = ofAll[sub] || resource == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(at, resources, "if '*/*' is present, must not specify other resources"))
	}
	if plain && slices.Contains(resources, "*") {
		errs = append(errs, field.Invalid(at, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

func fillSelector(s **metav1.LabelSelector) {
	if *s == nil {
		*s = &metav1.LabelSelector{}
	}
}

func validateSelector(s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at)
}

func fillMatch(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	if m.MatchPolicy == nil {
		m.MatchPolicy = new(admissionregistrationv1.Equivalent)
	}
	fillSelector(&m.NamespaceSelector)
	fillSelector(&m.ObjectSelector)
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			fillRule(&rules[i].Rule)
		}
	}
}

// validateMatch validates the selection of a policy or a binding.
func validateMatch(m *admissionregistrationv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	selector := func(name string, s *metav1.LabelSelector) {
		if s == nil {
			errs = append(errs, field.Required(at.Child(name), ""))
			return
		}
		errs = append(errs, validateSelector(s, at.Child(name))...)
	}
	selector("namespaceSelector", m.NamespaceSelector)
	selector("objectSelector", m.ObjectSelector)
	for _, list := range []struct {
		name  string
		rules []admissionregistrationv1.NamedRuleWithOperations
	}{{"resourceRules", m.ResourceRules}, {"excludeResourceRules", m.ExcludeResourceRules}} {
		for i := range list.rules {
			errs = append(errs, validateNamedRule(&list.rules[i], at.Child(list.name).Index(i))...)
		}
	}
	return append(
		errs,
		oneOf(m.MatchPolicy, true, at.Child("matchPolicy"), admissionregistrationv1.Equivalent, admissionregistrationv1.Exact)...)
}

func validateNamedRule(r *admissionregistrationv1.NamedRuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, name := range r.ResourceNames {
		for _, msg := range content.IsPathSegmentName(name) {
			errs = append(errs, field.Invalid(at.Child("resourceNames").Index(i), name, msg))
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(i), name))
		}
		seen[name] = true
	}
	return append(errs, validateRule(&r.RuleWithOperations, at)...)
}
