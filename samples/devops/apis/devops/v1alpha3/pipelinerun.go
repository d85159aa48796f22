package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// RunFinalizer holds a run until its processes and its log are gone.
	RunFinalizer = "devops.devops.io/run"
	// Succeeded is the condition that says how a run has ended, and Unknown until then.
	Succeeded = "Succeeded"
)

// PipelineRun does once what a pipeline says.
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

// PipelineRunSpec says what is run. Only action can be changed.
//
// +kubebuilder:validation:XValidation:rule="self.pipelineRef == oldSelf.pipelineRef && has(self.scm) == has(oldSelf.scm) &&
// (!has(self.scm) || self.scm == oldSelf.scm) && has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) ||
// self.parameters == oldSelf.parameters)",message="only action can be changed: create another run"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.action) || has(self.action)",message="a run that was stopped stays so:
// create another run",fieldPath=".action"
type PipelineRunSpec struct {
	// pipelineRef names the pipeline, of the same namespace.
	PipelineRef PipelineReference `json:"pipelineRef"`

	// scm is which state of the sources is run. Steps have the name of the reference in $BRANCH.
	// +optional
	SCM *SCM `json:"scm,omitempty"`

	// parameters are those of the pipeline that shall not have their defaults.
	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=name
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`

	// action is what is to become of the run: Stop ends it.
	// +optional
	Action Action `json:"action,omitempty"`
}

// PipelineReference names a pipeline.
type PipelineReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SCM is a state of the sources.
type SCM struct {
	// refType is what refName is the name of.
	// +kubebuilder:default=Branch
	// +optional
	RefType RefType `json:"refType,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	RefName string `json:"refName"`
}

// RefType is a kind of reference.
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

// Action is what is to become of a run.
//
// +kubebuilder:validation:Enum=Stop
type Action string

// Stop ends a run.
const Stop Action = "Stop"

// PipelineRunStatus is what has become of a run. The controller writes it.
type PipelineRunStatus struct {
	// phase is where the run is. Succeeded, Failed, Cancelled and Unknown are final.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// startTime is when the first step was about to start.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the run ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// steps are those of the pipeline as it was when the run started.
	// +listType=map
	// +listMapKey=name
	// +optional
	Steps []StepStatus `json:"steps,omitempty"`

	// conditions: Succeeded is Unknown until the run has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Phase is where a run is, or a step.
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

// Final says whether nothing follows the phase.
func (p Phase) Final() bool { return p != "" && p != PhasePending && p != PhaseRunning }

// StepStatus is what has become of a step.
type StepStatus struct {
	Name string `json:"name"`

	// phase is Cancelled as well for a step that was not reached, and Unknown if nothing is known of
	// its end.
	Phase Phase `json:"phase"`

	// exitCode is that of the script; 128 and the signal if that ended it. There is none before.
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
