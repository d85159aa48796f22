package coreapi

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// Admission returns the plugin that rejects creates in a namespace that is missing (404) or being deleted (403 with
// the cause NamespaceTerminating), and the deletion of a permanent namespace (403). It has to run before all other
// plugins.
//
// Its responses are those of upstream's NamespaceLifecycle, but it reads the namespace from storage instead of from a
// cache. A namespace is usable from the moment its create is answered, and no request waits for a cache. Where the write
// itself depends on the namespace (see Guard), a cache suffices to let the request pass.
func (n *Namespaces) Admission() admission.Interface { return lifecycle{n} }

type lifecycle struct{ namespaces *Namespaces }

var _ admission.MutationInterface = lifecycle{}

func (lifecycle) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Delete
}

// Admit modifies nothing. It is in the mutating phase because that comes first.
func (l lifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		if a.GetOperation() == admission.Delete && l.namespaces.Permanent(a.GetName()) {
			return apierrors.NewForbidden(Resource, a.GetName(), errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	if a.GetOperation() != admission.Create || a.GetNamespace() == "" || revealsNothing(a.GetResource().GroupResource()) {
		return nil
	}
	if _, late := l.namespaces.checkedLate.Load(a.GetResource().GroupResource()); late && a.GetSubresource() == "" && !a.IsDryRun() {
		// The write checks the namespace once more, and exactly. Here a cache may permit, but only the storage forbids.
		if _, ok := l.namespaces.see(ctx, a.GetNamespace()); ok {
			return nil
		}
	}
	ns, err := l.namespaces.get(ctx, a.GetNamespace())
	if err != nil {
		return err
	}
	if isTerminating(ns) {
		return withTerminatingCause(admission.NewForbidden(a, errTerminating(ns.Name)), ns.Name)
	}
	return nil
}

// revealsNothing reports whether resource is the review of rights in a namespace. Its response must not reveal to
// callers without rights whether the namespace exists.
func revealsNothing(resource schema.GroupResource) bool {
	return resource == schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
}
