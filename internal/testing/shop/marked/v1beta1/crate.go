package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
)

// Crate holds goods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:deprecatedversion
// +kubebuilder:printcolumn:name="Box Count",type=integer,JSONPath=`.spec.boxes`
type Crate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CrateSpec      `json:"spec"`
	Status            v1.CrateStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type CrateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Crate `json:"items"`
}

type CrateSpec struct {
	// +kubebuilder:validation:Enum=small;large;huge
	// +kubebuilder:default=large
	Size string `json:"size,omitempty"`
	// +optional
	Boxes *int32 `json:"boxes,omitempty"`
	Owner string `json:"owner"`
}

// ToHub converts to the hub.
func ToHub(in *Crate, out *v1.Crate) error {
	out.Spec.Size, out.Spec.Boxes, out.Spec.Owner = in.Spec.Size, in.Spec.Boxes, in.Spec.Owner
	out.Status = in.Status
	return nil
}

// FromHub converts from the hub.
func FromHub(in *v1.Crate, out *Crate) error {
	out.Spec.Size, out.Spec.Boxes, out.Spec.Owner = in.Spec.Size, in.Spec.Boxes, in.Spec.Owner
	out.Status = in.Status
	return nil
}
