package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Stack has fields that are no pointers, left out when empty, and whose defaults are not
// zero.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.copies,statuspath=.status.copies
// +kubebuilder:storageversion
type Stack struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              StackSpec   `json:"spec"`
	Status            StackStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type StackList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Stack `json:"items"`
}

type StackSpec struct {
	// +kubebuilder:default=1
	Copies int32 `json:"copies,omitempty"`
	// +kubebuilder:default=true
	Sealed bool `json:"sealed,omitempty"`
	// +kubebuilder:default=fragile
	Note string `json:"note,omitempty"`
	// +kubebuilder:default={"a","b"}
	Tags []string `json:"tags,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Layers []Layer `json:"layers,omitempty"`
	// +optional
	Rooms map[string]Room `json:"rooms,omitempty"`
	// +optional
	Roof *Room `json:"roof,omitempty"`
	// +optional
	Weight int32 `json:"weight,omitempty"`
	// +optional
	Base Base `json:"base,omitzero"`
}

type Layer struct {
	Name string `json:"name"`
	// +kubebuilder:default=2
	Height int32 `json:"height,omitempty"`
}

type Room struct {
	// +kubebuilder:default=4
	Doors int32 `json:"doors,omitempty"`
}

type Base struct {
	// +kubebuilder:default=3
	Depth int32 `json:"depth,omitempty"`
	// +optional
	Material string `json:"material,omitempty"`
}

type StackStatus struct {
	Copies int32 `json:"copies,omitempty"`
	// +kubebuilder:default=Waiting
	Phase string `json:"phase,omitempty"`
}
