// Package quota implements resource quotas: their status, by a controller, and their limits, by upstream's admission
// plugin. The limited quantity is the number of objects of a kind in a namespace, including custom resources. Of kinds
// that have an evaluator of upstream's, such as pods, it is also what their objects use.
//
// An object is counted when it is admitted, but not every admitted object is stored in the end. Therefore the
// controller counts the stored objects at its start, after deletions, and when a quota has not changed for a moment.
// It adds the objects that were admitted and may be stored at any moment (Creates), because otherwise their share of
// the quota would be granted twice.
package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// Resource is the resource of quotas in storage and in errors.
var Resource = corev1.Resource("resourcequotas")

// counted are the kinds that can also be counted by their plain names.
var counted = []corev1.ResourceName{
	corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceReplicationControllers,
	corev1.ResourceQuotas, corev1.ResourceSecrets, corev1.ResourceServices,
}

// ignored are events, which expire by themselves, and resources without objects.
func ignored() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{
		{Resource: "bindings"}:                                                 {},
		{Resource: "componentstatuses"}:                                        {},
		{Resource: "events"}:                                                   {},
		{Group: "events.k8s.io", Resource: "events"}:                           {},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             {},
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   {},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      {},
	}
}

// measures are the evaluators of kinds whose objects use more than their number. The kinds are Kubernetes' own, in version v1.
type measures []quota.Evaluator

// of returns the evaluator of a kind; nil if objects of the kind are only counted.
func (m measures) of(kind schema.GroupResource) quota.Evaluator {
	for _, e := range m {
		if e.GroupResource() == kind {
			return e
		}
	}
	return nil
}

// naming returns the evaluator of the kind whose objects use what a name in a quota limits; nil if there is none.
func (m measures) naming(name corev1.ResourceName) quota.Evaluator {
	for _, e := range m {
		if len(e.MatchingResources([]corev1.ResourceName{name})) > 0 {
			return e
		}
	}
	return nil
}

// kindOf is kindOf, but includes names of what measured objects use.
func (m measures) kindOf(name corev1.ResourceName) (kind schema.GroupResource, ok bool) {
	if e := m.naming(name); e != nil {
		return e.GroupResource(), true
	}
	kind, _, ok = kindOf(name)
	return kind, ok
}

// configuration returns the evaluators of admission: measures, and those for plain names. A kind has one evaluator.
func (m measures) configuration() quota.Configuration {
	evaluators := slices.Clone(m)
	for _, name := range counted {
		kind := corev1.Resource(string(name))
		if m.of(kind) == nil {
			evaluators = append(evaluators, generic.NewObjectCountEvaluator(kind, nil, name)) // admission does not list
		}
	}
	return generic.NewConfiguration(evaluators, ignored())
}

// kindOf returns the kind whose objects a name in a quota counts. generic is set for names of the form
// count/RESOURCE.GROUP, which any kind has.
func kindOf(name corev1.ResourceName) (kind schema.GroupResource, generic, ok bool) {
	if resource, found := strings.CutPrefix(string(name), "count/"); found {
		kind = schema.ParseGroupResource(resource)
		_, ignore := ignored()[kind]
		return kind, true, !ignore
	}
	for _, known := range counted {
		if known == name {
			return corev1.Resource(string(name)), false, true
		}
	}
	return schema.GroupResource{}, false, false
}
