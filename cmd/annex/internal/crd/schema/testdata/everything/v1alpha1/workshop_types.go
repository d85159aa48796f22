package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workshops,singular=workroom,scope=Namespaced,shortName=ws;wsh,categories=all;craft
// +kubebuilder:unservedversion
// +kubebuilder:deprecatedversion
type Workshop struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// WorkshopList is a list of objects of the kind Workshop.
// +kubebuilder:object:root=true
type WorkshopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Workshop `json:"items"`
}
