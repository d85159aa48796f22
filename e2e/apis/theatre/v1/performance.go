package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Performance is a request to perform a play, which takes its time.
type Performance struct {
	metav1.TypeMeta `json:",inline"`

	// acts is how many there are. Each takes 20 ms.
	// +optional
	// +default=3
	Acts int64 `json:"acts,omitempty"`
}
