package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pipeline defines the steps of a build.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=pipelines,shortName=pip,categories=devops
type Pipeline struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PipelineSpec `json:"spec"`
}

// PipelineSpec defines the work of a run.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'multi-branch-pipeline' || !has(self.branches)",message="branches are those of the type multi-branch-pipeline",fieldPath=".branches"
type PipelineSpec struct {
	// type is pipeline, or multi-branch-pipeline, in which each run is for one branch.
	// +kubebuilder:default=pipeline
	// +optional
	Type PipelineType `json:"type,omitempty"`

	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	Branches []string `json:"branches,omitempty"`

	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=name
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`

	// stages are run one after another, until one fails.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=name
	Stages []Stage `json:"stages"`

	// keepRuns is the number of finished runs to keep, the newest; without it, all are kept.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	KeepRuns *int32 `json:"keepRuns,omitempty"`
}

// PipelineType is a kind of pipeline.
//
// +kubebuilder:validation:Enum=pipeline;multi-branch-pipeline
type PipelineType string

// The types of pipelines.
const (
	PlainPipeline       PipelineType = "pipeline"
	MultiBranchPipeline PipelineType = "multi-branch-pipeline"
)

// Stage is a script that a shell runs.
type Stage struct {
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`
	// sh is a script for /bin/sh, which ends at the first command that fails.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Sh string `json:"sh"`
}

// Parameter is the value of a parameter, or its default in a pipeline.
type Parameter struct {
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]{0,62}$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00]*$`
	// +optional
	Value string `json:"value,omitempty"`
}

// PipelineList is a list of pipelines.
//
// +kubebuilder:object:root=true
type PipelineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pipeline `json:"items"`
}
