package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Escalation asks for more attention to a Ticket.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Escalation struct {
	metav1.TypeMeta `json:",inline"`

	// +k8s:required
	// +k8s:maxLength=8
	To string `json:"to"`
	// +k8s:optional
	// +k8s:minimum=1
	Levels *int32 `json:"levels,omitempty"`
	// +k8s:optional
	// +k8s:ifDisabled(LongNotes)=+k8s:maxLength=5
	Note *string `json:"note,omitempty"`
	// +k8s:ifDisabled(Pagers)=+k8s:forbidden
	// +k8s:ifEnabled(Pagers)=+k8s:optional
	Pager *string `json:"pager,omitempty"`
}

// HistoryOptions say which part of a Ticket's history is shown.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type HistoryOptions struct {
	metav1.TypeMeta `json:",inline"`

	// +k8s:optional
	// +k8s:maximum=100
	Limit *int64 `json:"limit,omitempty"`
	// +k8s:ifDisabled(Pagers)=+k8s:forbidden
	// +k8s:ifEnabled(Pagers)=+k8s:optional
	Pager *string `json:"pager,omitempty"`
}
