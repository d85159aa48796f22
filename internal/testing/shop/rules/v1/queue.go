package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Queue is worked off by so many desks. Its selector is that of Kubernetes' own workloads.
type Queue struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   QueueSpec   `json:"spec"`
	Status QueueStatus `json:"status,omitempty"`
}

// QueueList is a list of Queues.
type QueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Queue `json:"items"`
}

// QueueSpec is how a Queue is to be.
type QueueSpec struct {
	Replicas *int32                `json:"replicas,omitempty"`
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	Owner    string                `json:"owner,omitempty"`
}

// QueueStatus is how a Queue is.
type QueueStatus struct {
	Replicas int32  `json:"replicas,omitempty"`
	Phase    string `json:"phase,omitempty"`
	Changes  int32  `json:"changes,omitempty"`
}
