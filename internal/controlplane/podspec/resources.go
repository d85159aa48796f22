package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The resources of Kubernetes that need no domain, and those of them that are counted in whole numbers.
var (
	counted = []corev1.ResourceName{
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
	standard = slices.Concat(
		counted,
		[]corev1.ResourceName{"cpu", corev1.ResourceMemory, "ephemeral-storage", "storage", "requests.cpu", "requests.memory",
			"requests.ephemeral-storage", "requests.storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage"},
	)
	ofContainers = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	ofPods       = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
)

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// native reports whether a resource is Kubernetes' own.
func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// extended reports whether a resource belongs to another project.
func extended(name corev1.ResourceName) bool {
	return !native(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// overcommitted reports whether a request for a resource may be lower than its limit.
func overcommitted(name corev1.ResourceName) bool { return native(name) && !hugePages(name) }

// resourceName validates the form of a name, and reports whether it is valid.
func (c *check) resourceName(at *field.Path, name corev1.ResourceName) bool {
	if wrong := validation.IsQualifiedName(string(name)); len(wrong) > 0 {
		c.each(at, name, wrong)
		return false
	}
	if !strings.Contains(string(name), "/") && !slices.Contains(standard, name) && !hugePages(name) &&
		!strings.HasPrefix(string(name), "requests.hugepages-") {
		c.invalid(at, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

func (c *check) containerResource(at *field.Path, name corev1.ResourceName) {
	c.resourceName(at, name)
	switch {
	case strings.Count(string(name), "/") == 0:
		if !slices.Contains(ofContainers, name) && !hugePages(name) {
			c.invalid(at, name, "must be a standard resource for containers")
		}
	case !native(name) && !extended(name):
		c.invalid(at, name, "doesn't follow extended resource name standard")
	}
}

func (c *check) podResource(at *field.Path, name corev1.ResourceName) {
	if c.resourceName(at, name) && !slices.Contains(ofPods, name) && !hugePages(name) {
		c.add(field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
	}
}

// amount validates the amount of a resource.
func (c *check) amount(at *field.Path, name corev1.ResourceName, quantity resource.Quantity) {
	if quantity.Sign() < 0 {
		c.invalid(at, quantity.String(), apivalidation.IsNegativeErrorMsg)
	}
	if (slices.Contains(counted, name) || extended(name)) && quantity.MilliValue()%1000 != 0 {
		c.invalid(at, quantity, "must be an integer")
	}
}

// resources validates requests and limits, which must be equal for a resource that cannot be shared.
func (c *check) resources(at *field.Path, r *corev1.ResourceRequirements, validateName func(*field.Path, corev1.ResourceName)) {
	computes, pages := false, false
	list := func(at *field.Path, amounts corev1.ResourceList) {
		for _, name := range sorted(amounts) {
			quantity, at := amounts[name], at.Key(string(name))
			validateName(at, name)
			c.amount(at, name, quantity)
			if hugePages(name) {
				pages = true
				c.wholePages(at, name, quantity)
			}
			computes = computes || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	limits, requests := at.Child("limits"), at.Child("requests")
	list(limits, r.Limits)
	list(requests, r.Requests)
	for _, name := range sorted(r.Requests) {
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		switch {
		case !limited && !overcommitted(name):
			c.required(limits, "Limit must be set for non overcommitable resources")
		case !limited:
		case !overcommitted(name) && request.Cmp(limit) != 0:
			c.invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case request.Cmp(limit) > 0:
			c.invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	}
	if pages && !computes {
		c.forbidden(at, "HugePages require cpu or memory")
	}
	c.claimed(at.Child("claims"), r.Claims)
}

func (c *check) wholePages(at *field.Path, name corev1.ResourceName, quantity resource.Quantity) {
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || page.Sign() <= 0 || page.MilliValue()%1000 != 0 || quantity.Value()%page.Value() != 0 {
		c.invalid(at, quantity.String(), fmt.Sprintf("%s is not positive integer multiple of %s", quantity.String(), name))
	}
}

// claimed validates the resource claims that a container uses, either a whole claim or single requests of it.
func (c *check) claimed(at *field.Path, claims []corev1.ResourceClaim) {
	var used []string
	for i, claim := range claims {
		at := at.Index(i)
		if !c.filled(at, claim.Name) {
			continue
		}
		if slices.Contains(used, claim.Name) {
			c.add(field.Duplicate(at, claim.Name))
		} else {
			key := claim.Name
			if claim.Request != "" {
				c.each(at.Child("request"), claim.Request, validation.IsDNS1123Label(claim.Request))
				key += "/" + claim.Request
			}
			if slices.Contains(used, key) {
				c.add(field.Duplicate(at, key))
			} else {
				for _, other := range used {
					if name, _, partly := strings.Cut(other, "/"); partly && claim.Request == "" && name == claim.Name {
						c.add(field.Duplicate(at, claim.Name))
					}
				}
				used = append(used, key)
			}
		}
		if !slices.Contains(c.claims, claim.Name) {
			missing := field.NotFound(at, claim.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if len(c.claims) > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(c.claims, ", ")
			}
			c.add(missing)
		}
	}
}

// resourceClaims validates the pod's resource claims.
func (c *check) resourceClaims(at *field.Path) {
	for i, claim := range c.spec.ResourceClaims {
		at := at.Index(i)
		switch {
		case claim.Name == "":
			c.required(at.Child("name"), "")
		case slices.Contains(c.claims, claim.Name):
			c.add(field.Duplicate(at.Child("name"), claim.Name))
		default:
			c.each(at.Child("name"), claim.Name, validation.IsDNS1123Label(claim.Name))
			c.claims = append(c.claims, claim.Name)
		}
		name, template := claim.ResourceClaimName, claim.ResourceClaimTemplateName
		switch {
		case name != nil && template != nil:
			c.invalid(at, internal{claim}, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case name == nil && template == nil:
			c.invalid(at, internal{claim}, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if name != nil {
			c.each(at.Child("resourceClaimName"), *name, subdomain(*name))
		}
		if template != nil {
			c.each(at.Child("resourceClaimTemplateName"), *template, subdomain(*template))
		}
	}
	slices.Sort(c.claims)
}

// podResources validates the resources that all containers share.
func (c *check) podResources(at *field.Path) {
	r := c.spec.Resources
	if r == nil {
		return
	}
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		c.forbidden(at, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		c.forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	c.resources(at, r, c.podResource)
	requested := aggregate(c.spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests })
	for _, name := range sorted(requested) {
		total := requested[name]
		if most, ok := r.Requests[name]; ok && total.Cmp(most) > 0 {
			c.invalid(at.Child("requests").Key(string(name)), most.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", total.String()))
		}
	}
	limited := aggregate(c.spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits })
	for _, name := range sorted(limited) {
		total := limited[name]
		if most, ok := r.Limits[name]; ok && hugePages(name) && total.Cmp(most) > 0 {
			c.invalid(at.Child("limits").Key(string(name)), most.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", total.String()))
		}
	}
	for i := range c.spec.Containers {
		limits := c.spec.Containers[i].Resources.Limits
		for _, name := range sorted(limits) {
			limit := limits[name]
			if most, ok := r.Limits[name]; ok && limit.Cmp(most) > 0 {
				c.invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", most.String()))
			}
		}
	}
}

// aggregate returns the largest amount that containers need at the same time: all regular containers and sidecars, or
// an init container and the sidecars that are already running.
func aggregate(spec *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	total, beside, most := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		sum(total, of(&spec.Containers[i]))
	}
	for i := range spec.InitContainers {
		container := &spec.InitContainers[i]
		if sidecar(container) {
			sum(total, of(container))
			sum(beside, of(container))
			maximum(most, beside)
			continue
		}
		now := corev1.ResourceList{}
		sum(now, of(container))
		sum(now, beside)
		maximum(most, now)
	}
	maximum(total, most)
	return total
}

func sum(list, other corev1.ResourceList) {
	for name, quantity := range other {
		if known, ok := list[name]; ok {
			known.Add(quantity)
			list[name] = known
		} else {
			list[name] = quantity.DeepCopy()
		}
	}
}

func maximum(list, other corev1.ResourceList) {
	for name, quantity := range other {
		if known, ok := list[name]; !ok || quantity.Cmp(known) > 0 {
			list[name] = quantity.DeepCopy()
		}
	}
}
