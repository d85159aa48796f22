package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Crate holds goods.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=crates,shortName=cr,categories=shop
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.boxes,statuspath=.status.boxes,selectorpath=.status.selector
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Boxes",type=integer,JSONPath=`.spec.boxes`,priority=1
// +kubebuilder:printcolumn:name="Packed",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.size`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 20",message="name is too long for a label"
type Crate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CrateSpec   `json:"spec"`
	Status            CrateStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type CrateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Crate `json:"items"`
}

// +kubebuilder:validation:XValidation:rule="!has(self.label) || self.label != self.owner",message="label and owner differ",fieldPath=".label",reason=FieldValueDuplicate
type CrateSpec struct {
	// +kubebuilder:validation:Enum=small;large
	// +kubebuilder:default=small
	Size string `json:"size,omitempty"`

	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +kubebuilder:default=3
	Boxes *int32 `json:"boxes,omitempty"`

	// Owner must be given, and may be empty.
	//
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",messageExpression="'the owner was ' + oldSelf"
	Owner string `json:"owner"`

	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:Pattern=`^[a-z]+$`
	// +optional
	Label string `json:"label,omitempty"`

	// Code is optional and always written.
	//
	// +kubebuilder:validation:MinLength=3
	// +optional
	Code string `json:"code"`

	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=3
	// +optional
	Goods []Good `json:"goods,omitempty"`

	// +listType=set
	// +optional
	Tags []string `json:"tags,omitempty"`

	// +optional
	Weight *intstr.IntOrString `json:"weight,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Extra runtime.RawExtension `json:"extra,omitempty"`

	// +nullable
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}

type Good struct {
	Name string `json:"name"`
	// +kubebuilder:default=1
	Count int32 `json:"count,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
}

type CrateStatus struct {
	Boxes    int32  `json:"boxes,omitempty"`
	Selector string `json:"selector,omitempty"`
	// +kubebuilder:validation:Enum=Open;Closed
	// +optional
	Lid string `json:"lid,omitempty"`
}

// Pallet has a status, but no /status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type Pallet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            CrateStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type PalletList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Pallet `json:"items"`
}
