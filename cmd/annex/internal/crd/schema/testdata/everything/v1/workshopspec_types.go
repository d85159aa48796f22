package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workshopspecs,scope=Cluster
// +kubebuilder:storageversion
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith('a')"
type WorkshopSpec struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Size int32 `json:"size"`
}

// WorkshopSpecList is a list of objects of the kind WorkshopSpec.
// +kubebuilder:object:root=true
type WorkshopSpecList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WorkshopSpec `json:"items"`
}
