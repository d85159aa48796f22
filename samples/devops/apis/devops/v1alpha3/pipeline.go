package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pipeline is what is done for a project, step by step. A PipelineRun does it once.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=pipelines,shortName=pip,categories=devops
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Description",type=string,JSONPath=`.spec.description`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.type`
type Pipeline struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PipelineSpec `json:"spec"`
}

// PipelineSpec says what a run does.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'MultiBranch' || !has(self.branches)",message="branches are those of the
// type MultiBranch",fieldPath=".branches"
type PipelineSpec struct {
	// type is Pipeline, or MultiBranch, whose runs are of a branch each.
	// +kubebuilder:default=Pipeline
	// +optional
	Type PipelineType `json:"type,omitempty"`

	// description is for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// branches are those that may be run, of the type MultiBranch: names, or patterns such as
	// release-*; all if there are none.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	Branches []string `json:"branches,omitempty"`

	// parameters are those that a run may give. Steps have them in their environment.
	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=name
	// +optional
	Parameters []ParameterDefinition `json:"parameters,omitempty"`

	// steps are run one after another, until one fails.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	Steps []Step `json:"steps"`

	// discarder says which of the runs that have ended are kept; all if there is none.
	// +optional
	Discarder *Discarder `json:"discarder,omitempty"`
}

// PipelineType is a kind of pipeline.
//
// +kubebuilder:validation:Enum=Pipeline;MultiBranch
type PipelineType string

// The types of pipelines.
const (
	PlainPipeline       PipelineType = "Pipeline"
	MultiBranchPipeline PipelineType = "MultiBranch"
)

// Step is a script that a shell runs.
type Step struct {
	// name names the step within its pipeline.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// script is what /bin/sh runs, which ends at the first command that fails. All steps of a run have
	// the same working folder, which is empty at first and removed in the end.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Script string `json:"script"`

	// env is the step's environment, beside PATH, HOME, the parameters, and PIPELINE, RUN, NAMESPACE,
	// BRANCH and STEP.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`

	// timeoutSeconds is how long the step may take, an hour if it is not said.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// EnvVar is a variable of the environment.
type EnvVar struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]{0,62}$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Value string `json:"value,omitempty"`
}

// ParameterDefinition is a parameter that runs may give.
type ParameterDefinition struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]{0,62}$`
	Name string `json:"name"`

	// description is for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// default is the value if a run gives none.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Default string `json:"default,omitempty"`
}

// Discarder says which runs are kept.
type Discarder struct {
	// numToKeep is how many of the runs that have ended are kept, the newest.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	NumToKeep int32 `json:"numToKeep"`
}

// PipelineList is a list of pipelines.
//
// +kubebuilder:object:root=true
type PipelineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pipeline `json:"items"`
}
