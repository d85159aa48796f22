package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GuestbookSpec defines the desired state of Guestbook
// +kubebuilder:validation:XValidation:rule="!self.public || self.copies < 100",message="nobody prints so many"
type GuestbookSpec struct {
	// copies is how many are printed.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	Copies int32 `json:"copies,omitempty"`

	// public says whether everyone may read it.
	// +kubebuilder:default=true
	// +optional
	Public bool `json:"public,omitempty"`

	// greeting is what the first page says.
	// +kubebuilder:default="welcome"
	// +kubebuilder:validation:MaxLength=20
	// +optional
	Greeting string `json:"greeting,omitempty"`

	// paper is what it is printed on.
	// +kubebuilder:default=A4
	// +kubebuilder:validation:Enum=A4;Letter
	// +optional
	Paper string `json:"paper,omitempty"`

	// limits bound the entries.
	// +kubebuilder:default={length: 80}
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// pages is how many pages there are, if it is limited.
	// +optional
	Pages *int32 `json:"pages,omitempty"`

	// entries are by name.
	// +listType=map
	// +listMapKey=name
	// +optional
	Entries []Entry `json:"entries,omitempty"`
}

// Limits bound entries.
type Limits struct {
	// length is how long one may be.
	// +optional
	Length int32 `json:"length,omitempty"`
	// perDay is how many there may be.
	// +kubebuilder:default=10
	// +optional
	PerDay int32 `json:"perDay,omitempty"`
}

// Entry is what a guest has written.
type Entry struct {
	// name is the guest's.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// stars is what the guest gives.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Maximum=5
	// +optional
	Stars int32 `json:"stars,omitempty"`
}

// GuestbookStatus defines the observed state of Guestbook.
type GuestbookStatus struct {
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gb
// +kubebuilder:printcolumn:name="Copies",type=integer,JSONPath=`.spec.copies`

// Guestbook is the Schema for the guestbooks API
type Guestbook struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is a standard object metadata
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the desired state of Guestbook
	// +required
	Spec GuestbookSpec `json:"spec"`

	// status defines the observed state of Guestbook
	// +optional
	Status GuestbookStatus `json:"status,omitzero"`
}

// +kubebuilder:object:root=true

// GuestbookList contains a list of Guestbook
type GuestbookList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Guestbook `json:"items"`
}

func init() {
	SchemeBuilder.Register(&Guestbook{}, &GuestbookList{})
}
