package builtin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
)

func resourceQuotas() *define.Kind {
	printed := func(limits bool) func(q *corev1.ResourceQuota) any {
		return func(q *corev1.ResourceQuota) any {
			var all []string
			for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
				used, hard := q.Status.Used[name], q.Status.Hard[name]
				if strings.HasPrefix(string(name), "limits.") == limits {
					all = append(all, fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String()))
				}
			}
			return strings.Join(all, ", ")
		}
	}
	k := kind[corev1.ResourceQuota, corev1.ResourceQuotaList](
		"resourcequotas",
		core.API,
		rules[corev1.ResourceQuota]{
			fill: func(q *corev1.ResourceQuota) { roundUp(q.Spec.Hard); roundUp(q.Status.Hard); roundUp(q.Status.Used) },
			validate: func(q *corev1.ResourceQuota) field.ErrorList {
				return append(objects.ValidateFinalizers(q.Finalizers), validateQuota(&q.Spec)...)
			},
			validateUpdate: validateQuotaUpdate,
			warn:           warnOfQuota,
			validateStatus: func(q, _ *corev1.ResourceQuota) field.ErrorList { return validateQuotaStatus(&q.Status) },
		},
		column("Request", "Request represents a minimum amount of cpu/memory that a container may consume.", printed(false)),
		column(
			"Limit",
			"Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
			printed(true),
		),
		age(),
	)
	k.ShortNames, k.Status, k.WithoutGeneration, k.Unconditional, k.ReturnsDeleted = []string{"quota"}, true, true, true, true
	k.StatusMetadata = true
	return k
}

// roundUp rounds up to thousandths, the smallest amounts that can be requested.
func roundUp(list corev1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(resource.Milli)
		list[name] = quantity
	}
}

const memory = string(corev1.ResourceMemory)

// The resources and scopes of Kubernetes that need no domain. Except for cpu, memory and similar ones, they are
// counted in whole numbers.
var (
	computeResources = []string{
		"cpu",
		memory,
		"ephemeral-storage",
		"requests.cpu",
		"requests.memory",
		"requests.ephemeral-storage",
		"requests.storage",
		"limits.cpu",
		"limits.memory",
		"limits.ephemeral-storage",
	}
	podResources = []string{"cpu", memory, "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods", "ephemeral-storage",
		"requests.ephemeral-storage", "limits.ephemeral-storage"}
	countedResources = []string{
		"pods",
		"resourcequotas",
		"services",
		"replicationcontrollers",
		"secrets",
		"configmaps",
		"persistentvolumeclaims",
		"services.nodeports",
		"services.loadbalancers",
	}
	quotaScopes = []corev1.ResourceQuotaScope{
		corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort,
		corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass,
	}
)

func validateQuota(spec *corev1.ResourceQuotaSpec) field.ErrorList {
	at := field.NewPath("spec")
	errs := validateAmounts(spec.Hard, at.Child("hard"))
	errs = append(errs, validateScopes(spec, at)...)
	return append(errs, validateScopeSelector(spec, at.Child("scopeSelector", "matchExpressions"))...)
}

func validateAmounts(list corev1.ResourceList, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity, key := list[name], at.Key(string(name))
		errs = append(errs, validateQuotaResource(string(name), key)...)
		errs = append(errs, validateAmount(string(name), quantity, key)...)
	}
	return errs
}

func validateAmount(name string, quantity resource.Quantity, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if quantity.Sign() < 0 {
		errs = append(errs, field.Invalid(at, quantity.String(), apivalidation.IsNegativeErrorMsg))
	}
	if (slices.Contains(countedResources, name) || extended(name)) && quantity.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, quantity.String(), "must be an integer"))
	}
	return errs
}

// extended reports whether a resource belongs to another project than Kubernetes.
func extended(name string) bool {
	domain, _, qualified := strings.Cut(name, "/")
	return qualified && !strings.Contains(domain, "kubernetes.io") && !strings.HasPrefix(name, "requests.") &&
		len(validation.IsQualifiedName("requests."+name)) == 0
}

// validateQualified validates the form of a resource name.
func validateQualified(name string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(at, name, msg))
	}
	return errs
}

func validateQuotaResource(name string, at *field.Path) field.ErrorList {
	errs := validateQualified(name, at)
	if strings.Contains(name, "/") || strings.HasPrefix(name, "requests.hugepages-") ||
		strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
		return errs
	}
	if len(errs) == 0 && !slices.Contains(standardResources, name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	if !slices.Contains(computeResources, name) && !slices.Contains(countedResources, name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for quota"))
	}
	return errs
}

func validateScopes(spec *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	if len(spec.Scopes) == 0 {
		return nil
	}
	var errs field.ErrorList
	at = at.Child("scopes")
	for _, scope := range spec.Scopes {
		if !slices.Contains(quotaScopes, scope) {
			errs = append(errs, field.Invalid(at, spec.Scopes, "unsupported scope"))
		}
		for name := range spec.Hard {
			if quotaResource(string(name)) && !scopeMatches(scope, string(name)) {
				errs = append(errs, field.Invalid(at, spec.Scopes, "unsupported scope applied to resource"))
			}
		}
	}
	has := func(a, b corev1.ResourceQuotaScope) bool {
		return slices.Contains(spec.Scopes, a) && slices.Contains(spec.Scopes, b)
	}
	if has(corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort) ||
		has(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating) {
		errs = append(errs, field.Invalid(at, spec.Scopes, "conflicting scopes"))
	}
	return errs
}

func quotaResource(name string) bool {
	return slices.Contains(computeResources, name) || slices.Contains(countedResources, name)
}

func scopeMatches(scope corev1.ResourceQuotaScope, name string) bool {
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		return name == "pods"
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return name == "persistentvolumeclaims" || name == "requests.storage"
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return slices.Contains(podResources, name)
	}
	return true
}

func validateScopeSelector(spec *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	if spec.ScopeSelector == nil {
		return nil
	}
	var errs field.ErrorList
	var scopes []corev1.ResourceQuotaScope
	for _, r := range spec.ScopeSelector.MatchExpressions {
		if !slices.Contains(quotaScopes, r.ScopeName) {
			errs = append(errs, field.Invalid(at.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		for name := range spec.Hard {
			if quotaResource(string(name)) && !scopeMatches(r.ScopeName, string(name)) {
				errs = append(errs, field.Invalid(at, printedScopes(spec.ScopeSelector), "unsupported scope applied to resource"))
			}
		}
		switch r.ScopeName {
		case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
			corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
			if r.Operator != corev1.ScopeSelectorOpExists {
				errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "must be 'Exists' when scope is any of "+
					"ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort "+
					"or ResourceQuotaScopeCrossNamespacePodAffinity"))
			}
		}
		switch r.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(
					errs,
					field.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"),
				)
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) != 0 {
				errs = append(
					errs,
					field.Invalid(at.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"),
				)
			}
		default:
			errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
		scopes = append(scopes, r.ScopeName)
	}
	has := func(a, b corev1.ResourceQuotaScope) bool {
		return slices.Contains(scopes, a) && slices.Contains(scopes, b)
	}
	if has(corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort) ||
		has(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating) {
		errs = append(errs, field.Invalid(at, scopes, "conflicting scopes"))
	}
	return errs
}

// printedScopes returns a selector in the form that kube-apiserver prints in errors.
func printedScopes(s *corev1.ScopeSelector) any {
	type requirement struct {
		ScopeName corev1.ResourceQuotaScope
		Operator  corev1.ScopeSelectorOperator
		Values    []string
	}
	printed := struct{ MatchExpressions []requirement }{}
	for _, r := range s.MatchExpressions {
		printed.MatchExpressions = append(printed.MatchExpressions, requirement{r.ScopeName, r.Operator, r.Values})
	}
	return printed
}

func validateQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	sorted := func(scopes []corev1.ResourceQuotaScope) []corev1.ResourceQuotaScope {
		return slices.Compact(slices.Sorted(slices.Values(scopes)))
	}
	if !apiequality.Semantic.DeepEqual(sorted(q.Spec.Scopes), sorted(old.Spec.Scopes)) {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, immutable)}
	}
	return nil
}

func validateQuotaStatus(status *corev1.ResourceQuotaStatus) field.ErrorList {
	at := field.NewPath("status")
	return append(validateAmounts(status.Hard, at.Child("hard")), validateAmounts(status.Used, at.Child("used"))...)
}

// warnOfQuota warns of requests that exceed the limits of the same resource, and therefore can never be used up.
func warnOfQuota(q *corev1.ResourceQuota) []string {
	if q.ResourceVersion != "" {
		return nil // like kube-apiserver, which only warns about new quotas
	}
	var warnings []string
	for _, names := range [][2]corev1.ResourceName{{"cpu", "limits.cpu"}, {corev1.ResourceMemory, "limits.memory"},
		{"", "limits.ephemeral-storage"}} {
		request := corev1.ResourceName(strings.Replace(string(names[1]), "limits.", "requests.", 1))
		asked, ok := q.Spec.Hard[request]
		if !ok {
			request = names[0]
			asked, ok = q.Spec.Hard[request]
		}
		if limit, limited := q.Spec.Hard[names[1]]; ok && limited && asked.Cmp(limit) > 0 {
			warnings = append(
				warnings,
				fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)", request, asked.String(), names[1], limit.String()),
			)
		}
	}
	return warnings
}
