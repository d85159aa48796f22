// Package quota keeps resource quotas: their status, by a controller, and their limits, by
// upstream's admission plugin. What is limited here is how many objects of a kind a namespace
// has, custom resources as well.
//
// An object is counted when it is admitted. The controller counts again what is stored at its start, after
// deletions, and when a quota has not changed for a moment: not every object that is admitted is
// stored in the end. It adds the objects that were admitted and may be stored any moment (Creates), or
// their room would be given away twice.
package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// Resource names the quotas in storage and in errors.
var Resource = corev1.Resource("resourcequotas")

// counted are the kinds that may be counted by their bare names as well.
var counted = []corev1.ResourceName{
	corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceReplicationControllers,
	corev1.ResourceQuotas, corev1.ResourceSecrets, corev1.ResourceServices,
}

// ignored are events, which end by themselves, and what is no object.
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

// configuration is what admission counts by, beside each kind's own name.
func configuration() quota.Configuration {
	var evaluators []quota.Evaluator
	for _, name := range counted {
		// Admission does not list.
		evaluators = append(evaluators, generic.NewObjectCountEvaluator(corev1.Resource(string(name)), nil, name))
	}
	return generic.NewConfiguration(evaluators, ignored())
}

// kindOf returns the kind whose objects a name of a quota counts. Generic says that the name has
// the form count/RESOURCE.GROUP, in which any kind may be named.
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
