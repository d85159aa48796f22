package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Inspection asks for a verdict about a Widget, and brings it back.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Inspection struct {
	metav1.TypeMeta `json:",inline"`

	// phase is what shall become of it.
	Phase string `json:"phase,omitempty"`
	// inspector is who says so.
	// +default="anybody"
	Inspector string `json:"inspector,omitempty"`
	// +k8s:optional
	// +k8s:maxLength=12
	Remark string `json:"remark,omitempty"`
	// verdict is the answer.
	Verdict string `json:"verdict,omitempty"`
}

// Resizing gives a Widget another size.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Resizing struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Size string `json:"size"`
}

// LogOptions say which lines of a Widget's log are wanted.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type LogOptions struct {
	metav1.TypeMeta `json:",inline"`

	// follow waits for more lines.
	Follow bool `json:"follow,omitempty"`
	// tailLines is how many of the last lines there are.
	TailLines *int64 `json:"tailLines,omitempty"`
	// prefix is what lines begin with.
	// +default="log"
	Prefix string `json:"prefix,omitempty"`
	// levels are those of the lines.
	Levels []string `json:"levels,omitempty"`
	// since is the time of the first line.
	Since metav1.Time `json:"since,omitempty"`
	// share is how many of the lines there are.
	Share float64 `json:"share,omitempty"`
}
