package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/annexapi/annex/internal/shop/rules/v1"
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

// TicketToHub keeps nothing that this version cannot say.
func TicketToHub(in *Ticket, hub *v1.Ticket) error {
	hub.Spec = v1.TicketSpec{
		Title: in.Spec.Subject, Severity: in.Spec.Severity, Project: in.Spec.Project, Labels: in.Spec.Labels, Steps: in.Spec.Steps,
	}
	hub.Status = in.Status
	return nil
}

// TicketFromHub loses what this version cannot say.
func TicketFromHub(hub *v1.Ticket, out *Ticket) error {
	out.Spec = TicketSpec{
		Subject: hub.Spec.Title, Severity: hub.Spec.Severity, Project: hub.Spec.Project, Labels: hub.Spec.Labels, Steps: hub.Spec.Steps,
	}
	out.Status = hub.Status
	return nil
}
