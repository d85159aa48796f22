package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"

	v1 "github.com/annexapi/annex/internal/testing/shop/rules/v1"
)

// Ticket calls its title subject, and has a rule that the hub has not.
type Ticket struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TicketSpec      `json:"spec,omitempty"`
	Status v1.TicketStatus `json:"status,omitempty"`
}

// TicketSpec is what a Ticket says.
type TicketSpec struct {
	// +k8s:required
	Subject string `json:"subject"`

	// +k8s:optional
	// +k8s:minimum=2
	Severity *int32 `json:"severity,omitempty"`

	// Project may not change, says the hub.
	Project *string `json:"project,omitempty"`
	// +optional
	Labels []string `json:"labels,omitempty"`
	// +k8s:optional
	Steps []v1.Step `json:"steps,omitempty"`
}

// TicketList is a list of Tickets.
type TicketList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Ticket `json:"items"`
}

// Convert_v1beta1_TicketSpec_To_v1_TicketSpec knows that the hub calls it title.
func Convert_v1beta1_TicketSpec_To_v1_TicketSpec(in *TicketSpec, out *v1.TicketSpec, s conversion.Scope) error {
	out.Title = in.Subject
	return autoConvert_v1beta1_TicketSpec_To_v1_TicketSpec(in, out, s)
}

// Convert_v1_TicketSpec_To_v1beta1_TicketSpec loses what this version cannot say.
func Convert_v1_TicketSpec_To_v1beta1_TicketSpec(in *v1.TicketSpec, out *TicketSpec, s conversion.Scope) error {
	out.Subject = in.Title
	return autoConvert_v1_TicketSpec_To_v1beta1_TicketSpec(in, out, s)
}
