package builtin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/core"
)

func limitRanges() *define.Kind {
	k := kind[corev1.LimitRange, corev1.LimitRangeList]("limitranges", core.API,
		rules[corev1.LimitRange]{fill: fillLimits, validate: validateLimits}, createdAt())
	k.ShortNames, k.WithoutGeneration, k.Unconditional, k.CreateOnUpdate = []string{"limits"}, true, true, true
	return k
}

// fillLimits sets the default of a container's resource to its maximum, and the default request to the default, or
// else the minimum.
func fillLimits(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			roundUp(list)
		}
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		complete := func(list *corev1.ResourceList, from corev1.ResourceList) {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			for name, quantity := range from {
				if _, ok := (*list)[name]; !ok {
					(*list)[name] = quantity.DeepCopy()
				}
			}
		}
		complete(&item.Default, item.Max)
		complete(&item.DefaultRequest, item.Default)
		complete(&item.DefaultRequest, item.Min)
	}
}

var limitTypes = []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}

func validateLimits(l *corev1.LimitRange) field.ErrorList {
	errs := objects.ValidateFinalizers(l.Finalizers)
	var seen []corev1.LimitType
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(string(item.Type), at.Child("type"))...)
		if slices.Contains(seen, item.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), item.Type))
		}
		seen = append(seen, item.Type)
		errs = append(errs, validateLimit(item, at)...)
	}
	return errs
}

func validateLimitType(name string, at *field.Path) field.ErrorList {
	if errs := validateQualified(name, at); len(errs) > 0 {
		return errs
	}
	if !strings.Contains(name, "/") && !slices.Contains(limitTypes, corev1.LimitType(name)) {
		return field.ErrorList{field.Invalid(at, name, "must be a standard limit type or fully qualified")}
	}
	return nil
}

func validateLimit(item *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[corev1.ResourceName]bool{}
	list := func(name string, amounts corev1.ResourceList) {
		for _, key := range slices.Sorted(maps.Keys(amounts)) {
			errs = append(errs, validateLimitResource(item.Type, string(key), at.Child(name).Key(string(key)))...)
			names[key] = true
		}
	}
	list("max", item.Max)
	list("min", item.Min)
	if item.Type == corev1.LimitTypePod {
		for _, forbidden := range []struct {
			name string
			list corev1.ResourceList
		}{{"default", item.Default}, {"defaultRequest", item.DefaultRequest}} {
			if len(forbidden.list) > 0 {
				errs = append(errs, field.Forbidden(at.Child(forbidden.name), "may not be specified when `type` is 'Pod'"))
			}
		}
	} else {
		list("default", item.Default)
		list("defaultRequest", item.DefaultRequest)
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := item.Min[corev1.ResourceStorage]
		_, most := item.Max[corev1.ResourceStorage]
		if !least && !most {
			errs = append(errs, field.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	list("maxLimitRequestRatio", item.MaxLimitRequestRatio)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		errs = append(errs, validateOrder(item, name, at)...)
	}
	return errs
}

// validateOrder checks that the bounds of a resource are consistent: the minimum is not above the maximum, and the
// defaults are between them.
func validateOrder(item *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	type bound struct {
		called string
		list   corev1.ResourceList
	}
	least, most, request, usual := bound{
		"min",
		item.Min,
	}, bound{
		"max",
		item.Max,
	}, bound{
		"default request",
		item.DefaultRequest,
	}, bound{
		"default",
		item.Default,
	}
	order := func(at *field.Path, shown, low, high bound, called string) {
		a, lower := low.list[name]
		b, upper := high.list[name]
		if lower && upper && a.Cmp(b) > 0 {
			value := shown.list[name]
			errs = append(
				errs,
				field.Invalid(
					at.Key(string(name)),
					value.String(),
					fmt.Sprintf("%s value %s is greater than %s value %s", low.called, a.String(), called, b.String()),
				),
			)
		}
	}
	order(at.Child("min"), least, least, most, "max")
	order(at.Child("defaultRequest"), request, least, request, "default request")
	order(at.Child("defaultRequest"), request, request, most, "max")
	order(at.Child("defaultRequest"), request, request, usual, "default limit")
	// For a default, kube-apiserver shows the value that it conflicts with.
	order(at.Child("default"), least, least, usual, "default")
	order(at.Child("default"), most, usual, most, "max")
	errs = append(errs, validateRatio(item, name, at)...)
	if !overcommitted(name) && (item.Type == corev1.LimitTypeContainer || item.Type == corev1.LimitTypePod) {
		a, limited := item.Default[name]
		b, requested := item.DefaultRequest[name]
		if limited && requested && a.Cmp(b) != 0 {
			errs = append(errs, field.Invalid(at.Child("defaultRequest").Key(string(name)), b.String(),
				fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", a.String(), b.String(), name)))
		}
	}
	return errs
}

func validateRatio(item *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	ratio, ok := item.MaxLimitRequestRatio[name]
	if !ok {
		return nil
	}
	var errs field.ErrorList
	at = at.Child("maxLimitRequestRatio").Key(string(name))
	if ratio.Cmp(resource.MustParse("1")) < 0 {
		errs = append(errs, field.Invalid(at, ratio.String(), fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	least, lower := item.Min[name]
	most, upper := item.Max[name]
	if lower && upper {
		said := float64(ratio.Value())
		limit := float64(most.Value()) / float64(least.Value())
		if milli := ratio.Value() < resource.MaxMilliValue && most.Value() < resource.MaxMilliValue &&
			least.Value() < resource.MaxMilliValue; milli {
			said, limit = float64(ratio.MilliValue())/1000, float64(most.MilliValue())/float64(least.MilliValue())
		}
		if said > limit {
			errs = append(errs, field.Invalid(at, ratio.String(), fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), limit)))
		}
	}
	return errs
}

// overcommitted reports whether a request for a resource may be lower than its limit.
func overcommitted(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	native := !qualified || strings.Contains(domain, "kubernetes.io")
	return native && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

var (
	standardResources  = slices.Concat(computeResources, countedResources, []string{"storage", "limits.storage"})
	containerResources = []string{"cpu", memory, "ephemeral-storage"}
)

func validateLimitResource(limit corev1.LimitType, name string, at *field.Path) field.ErrorList {
	errs := validateQualified(name, at)
	inPods := limit == corev1.LimitTypePod || limit == corev1.LimitTypeContainer
	domain, _, qualified := strings.Cut(name, "/")
	if inPods && qualified && !strings.Contains(domain, "kubernetes.io") && !extended(name) {
		errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	if qualified {
		return errs
	}
	if len(errs) == 0 && !slices.Contains(standardResources, name) && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) &&
		!strings.HasPrefix(name, "requests.hugepages-") {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	if inPods && !slices.Contains(containerResources, name) && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
	}
	return errs
}
