package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pipeline defines the steps of a build. A PipelineRun runs it once.
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

// PipelineSpec defines the work of a run.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'MultiBranch' || !has(self.branches)",message="branches are those of the type MultiBranch",fieldPath=".branches"
type PipelineSpec struct {
	// type is Pipeline, or MultiBranch, in which each run is for one branch.
	// +kubebuilder:default=Pipeline
	// +optional
	Type PipelineType `json:"type,omitempty"`

	// description is for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// branches are the branches for which a pipeline of the type MultiBranch may run: names, or patterns such as
	// release-*. If there are none, it may run for any branch.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	Branches []string `json:"branches,omitempty"`

	// parameters are the parameters that a run may set. Steps have them in their environment.
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

	// discarder limits the finished runs that are kept; without it, all are kept.
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
	// name identifies the step within its pipeline.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// script is a script for /bin/sh, which ends at the first command that fails. All steps of a run share a working
	// folder, which is empty at first and removed at the end.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Script string `json:"script"`

	// env is the step's environment, in addition to PATH, HOME, the parameters, and PIPELINE, RUN, NAMESPACE, BRANCH
	// and STEP.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`

	// timeoutSeconds bounds the duration of the step; the default is an hour.
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

// ParameterDefinition is a parameter that runs may set.
type ParameterDefinition struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]{0,62}$`
	Name string `json:"name"`

	// description is for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// default is the value for runs that do not set the parameter.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Default string `json:"default,omitempty"`
}

// Discarder limits the runs that are kept.
type Discarder struct {
	// numToKeep is the number of finished runs to keep, the newest.
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
