// Package v1 registers its types the way kubebuilder scaffolds it.
// +kubebuilder:object:generate=true
// +groupName=kb.example.com
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of this package.
	GroupVersion = schema.GroupVersion{Group: "kb.example.com", Version: "v1"}

	// SchemeBuilder collects types.
	SchemeBuilder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
		metav1.AddToGroupVersion(scheme, GroupVersion)
		return nil
	})

	// AddToScheme adds them.
	AddToScheme = SchemeBuilder.AddToScheme
)
