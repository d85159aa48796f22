package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Packing asks for goods to be packed into a Crate.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="!has(self.until) || self.until >= self.layers",message="until is before layers",fieldPath=".until"
type Packing struct {
	metav1.TypeMeta `json:",inline"`
	Handling        `json:",inline"`

	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=2
	Layers int32 `json:"layers,omitempty"`

	// +optional
	Until *int32 `json:"until,omitempty"`

	// +kubebuilder:validation:Pattern=`^[a-z]+$`
	// +kubebuilder:validation:MaxLength=8
	Packer string `json:"packer"`

	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=name
	// +optional
	Goods []Good `json:"goods,omitempty"`

	// +listType=set
	// +optional
	Tags []string `json:"tags,omitempty"`
}

// Handling is embedded in requests.
type Handling struct {
	// +kubebuilder:validation:Enum=soft;rough
	// +kubebuilder:default=soft
	Handling string `json:"handling,omitempty"`
}

// Relabelling gives a Crate another label.
//
// +kubebuilder:object:root=true
type Relabelling struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:validation:MinLength=2
	Label string `json:"label"`
}

// PeekOptions say what of a Crate is shown.
//
// +kubebuilder:object:root=true
type PeekOptions struct {
	metav1.TypeMeta `json:",inline"`

	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +kubebuilder:default=4
	Depth int32 `json:"depth,omitempty"`

	// +kubebuilder:validation:Enum=top;side
	// +optional
	From string `json:"from,omitempty"`

	// +kubebuilder:validation:MaxItems=2
	// +optional
	Only []string `json:"only,omitempty"`
}
