package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
)

// Stack has a default for copies as the hub has, none for sealed, and no note.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.copies,statuspath=.status.copies
type Stack struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              StackSpec      `json:"spec"`
	Status            v1.StackStatus `json:"status,omitempty"`
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
	// +optional
	Sealed bool `json:"sealed,omitempty"`
}

// StackToHub converts to the hub.
func StackToHub(in *Stack, out *v1.Stack) error {
	out.Spec.Copies, out.Spec.Sealed, out.Status = in.Spec.Copies, in.Spec.Sealed, in.Status
	return nil
}

// StackFromHub converts from the hub.
func StackFromHub(in *v1.Stack, out *Stack) error {
	out.Spec.Copies, out.Spec.Sealed, out.Status = in.Spec.Copies, in.Spec.Sealed, in.Status
	return nil
}
