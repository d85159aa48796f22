package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Flunder is an object that may refer to one other flunder or to a fischer.
type Flunder struct {
	metav1.TypeMeta `json:",inline"`

	// Standard object's metadata.
	// More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the desired state of the flunder.
	// +optional
	Spec FlunderSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is the observed state of the flunder.
	// +optional
	Status FlunderStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// FlunderSpec is the desired state of a Flunder. It refers to nothing, or to a flunder, or to a fischer.
type FlunderSpec struct {
	// flunderReference is the name of another flunder. It must be set if
	// referenceType is Flunder, and must not be set otherwise.
	// +optional
	FlunderReference string `json:"flunderReference,omitempty" protobuf:"bytes,1,opt,name=flunderReference"`

	// fischerReference is the name of a fischer. It must be set if referenceType
	// is Fischer, and must not be set otherwise.
	// +optional
	FischerReference string `json:"fischerReference,omitempty" protobuf:"bytes,2,opt,name=fischerReference"`

	// referenceType is the kind of the referenced object. If only flunderReference is set, it defaults to Flunder.
	// +optional
	ReferenceType ReferenceType `json:"referenceType,omitempty" protobuf:"bytes,3,opt,name=referenceType"`
}

// ReferenceType is the kind of object that a reference names.
// +enum
type ReferenceType string

const (
	// FlunderReferenceType means that the reference is to another flunder.
	FlunderReferenceType ReferenceType = "Flunder"
	// FischerReferenceType means that the reference is to a fischer.
	FischerReferenceType ReferenceType = "Fischer"
)

// FlunderStatus is the observed state of a Flunder. It is empty.
type FlunderStatus struct{}

// FlunderList is a list of Flunders.
type FlunderList struct {
	metav1.TypeMeta `json:",inline"`

	// Standard list metadata.
	// More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the flunders.
	Items []Flunder `json:"items" protobuf:"bytes,2,rep,name=items"`
}
