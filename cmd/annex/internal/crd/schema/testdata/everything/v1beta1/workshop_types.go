package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workshops,singular=workroom,scope=Namespaced,shortName=ws;wsh,categories=all;craft
// +kubebuilder:deprecatedversion:warning=`use v1, "please"`
// +kubebuilder:pruning:PreserveUnknownFields
type Workshop struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec WorkshopSpec2 `json:"spec,omitempty"`
}

// WorkshopList is a list of objects of the kind Workshop.
// +kubebuilder:object:root=true
type WorkshopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Workshop `json:"items"`
}

type WorkshopSpec2 struct {
	// +optional
	Kind string `json:"kind,omitempty"`
}
