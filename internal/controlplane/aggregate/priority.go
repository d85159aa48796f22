package aggregate

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// priority orders groups, and versions within a group, the highest first.
type priority struct{ group, version int32 }

// customPriority is the priority of all custom resources, as in a cluster. Versions with the same priority are
// ordered by name.
var customPriority = priority{1000, 100}

// clusterGroups are the priorities of a cluster's groups.
var clusterGroups = map[string]int32{
	"events.k8s.io":                17750,
	"authentication.k8s.io":        17700,
	"authorization.k8s.io":         17600,
	"rbac.authorization.k8s.io":    17000,
	"apiextensions.k8s.io":         16700,
	"admissionregistration.k8s.io": 16700,
	"coordination.k8s.io":          16500,
	"flowcontrol.apiserver.k8s.io": 16100,
	"storagemigration.k8s.io":      15800,
}

// firstVersion is the priority of the preferred version of a cluster's group, unless the version has its own.
const firstVersion = 15

// ownGroup is the priority of groups that a cluster does not have: above custom resources, and below the cluster's
// groups.
const ownGroup = 2000

// ownServices returns the APIServices of versions, in which the preferred version of each group comes first.
func ownServices(versions []schema.GroupVersion) []*apiregistrationv1.APIService {
	var services []*apiregistrationv1.APIService
	before := map[string]int32{}
	for _, v := range versions {
		services = append(services, service(v, ownPriority(v, before[v.Group])))
		before[v.Group]++
	}
	return services
}

// ownPriority returns the priority of a version; before is the number of versions of its group that are preferred to
// it.
func ownPriority(v schema.GroupVersion, before int32) priority {
	p, first := priority{group: ownGroup}, customPriority.version
	if group, ok := clusterGroups[v.Group]; ok {
		p.group, first = group, firstVersion
	}
	switch v {
	case schema.GroupVersion{Version: "v1"}:
		return priority{18000, 1}
	case schema.GroupVersion{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:
		first = 21
	}
	p.version = max(1, first-before)
	return p
}
