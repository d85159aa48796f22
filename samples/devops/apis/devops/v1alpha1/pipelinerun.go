package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PipelineRun runs a pipeline once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pipelineruns,shortName=pr,categories=devops
// +kubebuilder:printcolumn:name="Pipeline",type=string,JSONPath=`.spec.pipeline`
// +kubebuilder:printcolumn:name="Branch",type=string,JSONPath=`.spec.branch`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
type PipelineRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PipelineRunSpec `json:"spec"`
	// +optional
	Status PipelineRunStatus `json:"status,omitempty"`
}

// PipelineRunSpec selects the pipeline and the branch.
type PipelineRunSpec struct {
	// pipeline is the name of the pipeline.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pipeline string `json:"pipeline"`

	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Branch string `json:"branch,omitempty"`

	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=name
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`

	// stop stops the run.
	// +optional
	Stop bool `json:"stop,omitempty"`
}

// PipelineRunStatus is the observed state of a run.
type PipelineRunStatus struct {
	// +optional
	State State `json:"state,omitempty"`
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Stages []StageStatus `json:"stages,omitempty"`
}

// State is the state of a run or of a stage.
//
// +kubebuilder:validation:Enum=Queued;Running;Success;Failure;Aborted;Unknown
type State string

// The states.
const (
	Queued  State = "Queued"
	Running State = "Running"
	Success State = "Success"
	Failure State = "Failure"
	Aborted State = "Aborted"
	Unknown State = "Unknown"
)

// StageStatus is the observed state of a stage.
type StageStatus struct {
	Name  string `json:"name"`
	State State  `json:"state"`
}

// PipelineRunList is a list of runs.
//
// +kubebuilder:object:root=true
type PipelineRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PipelineRun `json:"items"`
}
