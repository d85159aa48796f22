package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Guest is a person in the audience, who is given time to leave.
type Guest struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// seat is where the guest sits.
	// +optional
	Seat string `json:"seat,omitempty"`
}

// GuestList is a list of guests.
type GuestList struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the guests.
	Items []Guest `json:"items"`
}

// Curtain is a cluster-scoped object that the server takes down itself.
type Curtain struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// colour is the curtain's.
	// +optional
	Colour string `json:"colour,omitempty"`
}

// CurtainList is a list of curtains.
type CurtainList struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the curtains.
	Items []Curtain `json:"items"`
}
