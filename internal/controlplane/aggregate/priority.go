package aggregate

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// priority orders groups among each other, and versions in their group, the highest first.
type priority struct{ group, version int32 }

// customPriority is that of all custom resources, as in a cluster: versions of the same priority are
// ordered by their names.
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

// firstVersion is the priority of the preferred version of each of the cluster's groups that has not one
// of its own.
const firstVersion = 15

// ownGroup is the priority of groups that a cluster does not have: before those of custom resources, and
// behind the cluster's.
const ownGroup = 2000

// ownServices are the APIServices of versions, of which the preferred one of each group comes first.
func ownServices(versions []schema.GroupVersion) []*apiregistrationv1.APIService {
	var services []*apiregistrationv1.APIService
	before := map[string]int32{}
	for _, v := range versions {
		services = append(services, service(v, ownPriority(v, before[v.Group])))
		before[v.Group]++
	}
	return services
}

// ownPriority is that of a version that so many of its group are preferred to.
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
