package crds

import (
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/tools/cache"
)

// root maintains the groups of established definitions in the list at /apis. Clients of the aggregated document do
// not need it.
type root struct {
	groups      discovery.GroupManager
	definitions listers.CustomResourceDefinitionLister
	follower    Follower // nil for none
}

var _ cache.ResourceEventHandler = (*root)(nil)

func (r *root) OnAdd(obj any, _ bool) { r.follow(obj) }

func (r *root) OnUpdate(_, obj any) { r.follow(obj) }

func (r *root) OnDelete(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	r.follow(obj)
}

// follow updates the group of a definition. Handlers are called sequentially.
func (r *root) follow(obj any) {
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	served := r.served(definition.Spec.Group)
	if r.follower != nil {
		r.follower.Serve(definition.Spec.Group, served)
	}
	if len(served) > 0 {
		r.groups.AddGroup(groupOf(definition.Spec.Group, served...))
	} else {
		r.groups.RemoveGroup(definition.Spec.Group)
	}
}

// served returns the served versions of a group, the preferred one first.
func (r *root) served(group string) []string {
	all, err := r.definitions.List(labels.Everything())
	if err != nil {
		return nil // a cache returns no errors
	}
	var served []string
	for _, d := range all {
		if d.Spec.Group != group || !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
			continue
		}
		for _, v := range d.Spec.Versions {
			if v.Served && !slices.Contains(served, v.Name) {
				served = append(served, v.Name)
			}
		}
	}
	slices.SortFunc(served, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	return served
}
