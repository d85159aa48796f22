package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Hall is what clients are connected with.
type Hall struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// box is the URL of the box office, of which the subresource proxy is.
	// +optional
	Box string `json:"box,omitempty"`
}

// HallList is a list of halls.
type HallList struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the halls.
	Items []Hall `json:"items"`
}
