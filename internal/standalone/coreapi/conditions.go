package coreapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// remainingContent describes the objects and errors that prevent the removal of a namespace.
type remainingContent struct {
	kept       []objectCount
	finalizers map[string]int // number of objects by finalizer
	failures   []error
	discovery  error // set if not all resources are known
}

// resourceContent is the remaining content of one resource.
type resourceContent struct {
	kept       objectCount
	finalizers map[string]int
	failures   []error
}

func (r *remainingContent) add(o resourceContent) {
	r.failures = append(r.failures, o.failures...)
	for finalizer, count := range o.finalizers {
		r.finalizers[finalizer] += count
	}
	if o.kept.count > 0 {
		r.kept = append(r.kept, o.kept)
	}
}

// objectCount is the number of remaining objects of one resource.
type objectCount struct {
	resource schema.GroupVersionResource
	count    int
	revision string // resource version of the count
}

func (r remainingContent) nothing() bool {
	return len(r.kept) == 0 && len(r.failures) == 0 && r.discovery == nil
}

// conditions returns the conditions with kube-apiserver's reasons and messages, which tools and people know. Parsing
// versions cannot fail here: they come unmodified from discovery.
func (r remainingContent) conditions() []corev1.NamespaceCondition {
	var unknown, failures, resources, finalizers []string
	some := &discovery.ErrGroupDiscoveryFailed{}
	switch {
	case errors.As(r.discovery, &some):
		unknown = append(unknown, fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(some.Groups), r.discovery))
	case r.discovery != nil:
		unknown = append(unknown, r.discovery.Error())
	}
	for _, err := range r.failures {
		failures = append(failures, err.Error())
	}
	for _, k := range r.kept {
		resources = append(resources, fmt.Sprintf("%s.%s has %d resource instances", k.resource.Resource, k.resource.Group, k.count))
	}
	for finalizer, count := range r.finalizers {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", finalizer, count))
	}
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure,
			finding{"ResourcesDiscovered", "All resources successfully discovered"}, finding{reason: "DiscoveryFailed"}, unknown),
		condition(corev1.NamespaceDeletionGVParsingFailure,
			finding{"ParsedGroupVersions", "All legacy kube types successfully parsed"}, finding{}, nil),
		condition(corev1.NamespaceDeletionContentFailure,
			finding{"ContentDeleted", "All content successfully deleted, may be waiting on finalization"},
			finding{"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types, %d remaining: ", len(failures))}, failures),
		condition(corev1.NamespaceContentRemaining,
			finding{"ContentRemoved", "All content successfully removed"},
			finding{"SomeResourcesRemain", "Some resources are remaining: "}, resources),
		condition(corev1.NamespaceFinalizersRemaining,
			finding{"ContentHasNoFinalizers", "All content-preserving finalizers finished"},
			finding{"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "}, finalizers),
	}
}

type finding struct{ reason, message string }

// condition returns the bad condition if there are details, which are appended to its message, and else the good one.
func condition(kind corev1.NamespaceConditionType, good, bad finding, details []string) corev1.NamespaceCondition {
	if len(details) == 0 {
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: good.reason, Message: good.message}
	}
	slices.Sort(details)
	return corev1.NamespaceCondition{
		Type:    kind,
		Status:  corev1.ConditionTrue,
		Reason:  bad.reason,
		Message: bad.message + strings.Join(details, ", "),
	}
}

// setConditions sets conditions, and reports whether that changed the status.
func setConditions(status *corev1.NamespaceStatus, conditions []corev1.NamespaceCondition, now metav1.Time) (changed bool) {
	for _, c := range conditions {
		c.LastTransitionTime = now
		i := slices.IndexFunc(status.Conditions, func(old corev1.NamespaceCondition) bool { return old.Type == c.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, c)
			changed = true
			continue
		}
		old := &status.Conditions[i]
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		changed = changed || *old != c
		*old = c
	}
	return changed
}
