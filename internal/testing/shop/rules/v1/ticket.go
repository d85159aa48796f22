package v1

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Ticket has a field for each rule.
type Ticket struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TicketSpec   `json:"spec,omitempty"`
	Status TicketStatus `json:"status,omitempty"`
}

// Phase is where a Ticket is.
//
// +k8s:enum
type Phase string

// The phases.
const (
	PhaseOpen   Phase = "Open"
	PhaseClosed Phase = "Closed"
)

// TicketSpec is what a Ticket says.
type TicketSpec struct {
	// +k8s:required
	// +k8s:maxLength=10
	Title string `json:"title"`

	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=5
	Severity *int32 `json:"severity,omitempty"`

	// +k8s:optional
	// +k8s:format=k8s-short-name
	Owner *string `json:"owner,omitempty"`

	// +k8s:optional
	// +k8s:immutable
	Project *string `json:"project,omitempty"`

	// +k8s:optional
	Phase *Phase `json:"phase,omitempty"`

	// +k8s:optional
	// +k8s:maxItems=3
	// +k8s:listType=set
	// +k8s:eachVal=+k8s:maxLength=4
	Labels []string `json:"labels,omitempty"`

	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	Steps []Step `json:"steps,omitempty"`

	// +k8s:optional
	Source *Source `json:"source,omitempty"`

	// +k8s:optional
	// +k8s:subfield(name)=+k8s:required
	// +k8s:subfield(name)=+k8s:maxLength=3
	Secret *corev1.LocalObjectReference `json:"secret,omitempty"`

	// +k8s:optional
	// +k8s:ifDisabled(LongNotes)=+k8s:maxLength=5
	Note *string `json:"note,omitempty"`

	// +k8s:optional
	// +k8s:customValidation
	Word *string `json:"word,omitempty"`

	// Grid is a shape that validation does not go into.
	Grid map[string]map[string]string `json:"grid,omitempty"`
}

// Step is an item of a list with keys.
type Step struct {
	// +k8s:required
	Name string `json:"name"`
	// +k8s:optional
	// +k8s:minimum=0
	Minutes *int32 `json:"minutes,omitempty"`
}

// Source is one of two.
type Source struct {
	// +k8s:optional
	// +k8s:unionMember
	Mail *string `json:"mail,omitempty"`
	// +k8s:optional
	// +k8s:unionMember
	Phone *string `json:"phone,omitempty"`
}

// TicketStatus is what has become of it.
type TicketStatus struct {
	// +k8s:optional
	// +k8s:minimum=0
	Replies *int32 `json:"replies,omitempty"`
}

// TicketList is a list of Tickets.
type TicketList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Ticket `json:"items"`
}

// ValidateCustom_TicketSpec_Word is a rule that has no tag of its own.
func ValidateCustom_TicketSpec_Word(_ context.Context, _ operation.Operation, path *field.Path, value, _ *string) field.ErrorList {
	if value != nil && *value == "forbidden" {
		return field.ErrorList{field.Invalid(path, *value, "is that word")}
	}
	return nil
}
