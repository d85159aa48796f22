package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// RunFinalizer keeps a run until its processes and its log are gone.
	RunFinalizer = "devops.devops.io/run"
	// Succeeded is the condition with the result of a run; it is Unknown until the run has ended.
	Succeeded = "Succeeded"
)

// PipelineRun runs a pipeline once.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pipelineruns,shortName=pr,categories=devops
// +kubebuilder:printcolumn:name="Pipeline",type=string,JSONPath=`.spec.pipelineRef.name`
// +kubebuilder:printcolumn:name="Branch",type=string,JSONPath=`.spec.scm.refName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startTime`
// +kubebuilder:printcolumn:name="Ended",type=date,JSONPath=`.status.completionTime`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.pipelineRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.scm.refName`
// +kubebuilder:selectablefield:JSONPath=`.status.phase`
type PipelineRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PipelineRunSpec `json:"spec"`
	// +optional
	Status PipelineRunStatus `json:"status,omitempty"`
}

// PipelineRunSpec selects the pipeline and its parameters. Only action can be changed.
//
// +kubebuilder:validation:XValidation:rule="self.pipelineRef == oldSelf.pipelineRef && has(self.scm) == has(oldSelf.scm) && (!has(self.scm) || self.scm == oldSelf.scm) && has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters)",message="only action can be changed: create another run"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.action) || has(self.action)",message="a run that was stopped stays so: create another run",fieldPath=".action"
type PipelineRunSpec struct {
	// pipelineRef names the pipeline, in the same namespace.
	PipelineRef PipelineReference `json:"pipelineRef"`

	// scm is the revision of the sources. Steps have the name of the reference in $BRANCH.
	// +optional
	SCM *SCM `json:"scm,omitempty"`

	// parameters set parameters of the pipeline; the others have their defaults.
	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=name
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`

	// action is a request to the run: Stop stops it.
	// +optional
	Action Action `json:"action,omitempty"`
}

// PipelineReference names a pipeline.
type PipelineReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SCM is a revision of the sources.
type SCM struct {
	// refType is the type of the reference in refName.
	// +kubebuilder:default=Branch
	// +optional
	RefType RefType `json:"refType,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	RefName string `json:"refName"`
}

// RefType is a type of references.
//
// +kubebuilder:validation:Enum=Branch;Tag;PullRequest
type RefType string

// The types of references.
const (
	Branch      RefType = "Branch"
	Tag         RefType = "Tag"
	PullRequest RefType = "PullRequest"
)

// Parameter is the value of a parameter.
type Parameter struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]{0,62}$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Value string `json:"value,omitempty"`
}

// Action is a request to a run.
//
// +kubebuilder:validation:Enum=Stop
type Action string

// Stop stops a run.
const Stop Action = "Stop"

// PipelineRunStatus is the observed state of a run. The controller writes it.
type PipelineRunStatus struct {
	// phase is the state of the run. Succeeded, Failed, Cancelled and Unknown are final.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// startTime is when the first step was about to start.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the run ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// steps are the pipeline's steps at the start of the run.
	// +listType=map
	// +listMapKey=name
	// +optional
	Steps []StepStatus `json:"steps,omitempty"`

	// conditions has the condition Succeeded, which is Unknown until the run has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Phase is the state of a run or of a step.
//
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed;Cancelled;Unknown
type Phase string

// The phases.
const (
	PhasePending   Phase = "Pending"
	PhaseRunning   Phase = "Running"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
	PhaseCancelled Phase = "Cancelled"
	PhaseUnknown   Phase = "Unknown"
)

// Final reports whether the phase is final.
func (p Phase) Final() bool { return p != "" && p != PhasePending && p != PhaseRunning }

// StepStatus is the observed state of a step.
type StepStatus struct {
	Name string `json:"name"`

	// phase is Cancelled also for a step that was not reached, and Unknown if the end of the step is unknown.
	Phase Phase `json:"phase"`

	// exitCode is the exit code of the script, or 128 plus the number of the signal that ended it. It is set at the
	// end.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// PipelineRunList is a list of runs.
//
// +kubebuilder:object:root=true
type PipelineRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PipelineRun `json:"items"`
}
