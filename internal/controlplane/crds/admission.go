package crds

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/admission"
)

// Admission rejects definitions of the server's own groups, since no request would reach their custom resources.
func Admission(own []string) admission.Interface {
	return &ownGroups{admission.NewHandler(admission.Create, admission.Update), own}
}

type ownGroups struct {
	*admission.Handler
	groups []string
}

var _ admission.ValidationInterface = (*ownGroups)(nil)

// Validate implements admission.ValidationInterface.
func (o *ownGroups) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != Resource || a.GetSubresource() != "" {
		return nil
	}
	definition, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok || !slices.Contains(o.groups, definition.Spec.Group) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("spec.group: the group %s belongs to built-in kinds of this server and cannot have custom "+
		"resources: choose another group", definition.Spec.Group))
}
