// Package coreapi is the core group of a standalone server: the namespaces that kubectl and client-go rely on, with
// the life cycle of kube-apiserver.
//
// Namespaces have the type of k8s.io/api, which also stands for the group's internal version. Objects can be created
// only in an existing namespace that is not being deleted. Deleting a namespace first deletes its content, then the
// namespace; see Guard for the proof that no object can be left behind.
//
// There is one initial namespace, default, which cannot be deleted. kubectl needs no other: those of SystemNamespaces
// belong to parts of a cluster that only a control plane has.
package coreapi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddToScheme registers the group's types, defaults and selectable fields. With aliases, the types also stand for the
// internal version, which serving needs and OpenAPI must not contain.
func AddToScheme(scheme *runtime.Scheme, aliases bool) error {
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Namespace{}, &corev1.NamespaceList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	if aliases {
		internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
		scheme.AddKnownTypes(internal, &corev1.Namespace{}, &corev1.NamespaceList{})
	}
	scheme.AddTypeDefaultingFunc(&corev1.Namespace{}, func(obj any) { setNameLabel(obj.(*corev1.Namespace)) })
	if err := scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind("Namespace"), selectable); err != nil {
		return fmt.Errorf("selectable fields of namespaces: %w", err)
	}
	return scheme.SetVersionPriority(corev1.SchemeGroupVersion)
}

func selectable(label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "status.phase":
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// setNameLabel sets a label with the name, for clients that can select by labels only. A generated name is not known
// yet when defaults are set.
func setNameLabel(ns *corev1.Namespace) {
	if ns.Name == "" {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}
