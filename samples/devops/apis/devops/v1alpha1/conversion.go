package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"example.com/devops/apis/devops/v1alpha3"
)

// MoreAnnotation holds, on objects of this version, the values for which only v1alpha3 has fields. Objects of
// v1alpha3 never have it.
const MoreAnnotation = "devops.devops.io/v1alpha3"

// moreOfPipeline holds the values without a field in this version, by the names of steps and parameters.
type moreOfPipeline struct {
	Steps      map[string]moreOfStep `json:"steps,omitempty"`
	Parameters map[string]string     `json:"parameters,omitempty"` // descriptions
}

type moreOfStep struct {
	Env            []v1alpha3.EnvVar `json:"env,omitempty"`
	TimeoutSeconds *int32            `json:"timeoutSeconds,omitempty"`
}

// moreOfRun holds the values without a field in this version.
type moreOfRun struct {
	RefType    v1alpha3.RefType               `json:"refType,omitempty"`
	Steps      map[string]v1alpha3.StepStatus `json:"steps,omitempty"`
	Conditions []metav1.Condition             `json:"conditions,omitempty"`
}

// PipelineToHub converts in to out. It fails if MoreAnnotation was not written by PipelineFromHub.
func PipelineToHub(in *Pipeline, out *v1alpha3.Pipeline) error {
	var more moreOfPipeline
	if err := takeMore(&in.ObjectMeta, &out.ObjectMeta, &more); err != nil {
		return err
	}
	out.Spec = v1alpha3.PipelineSpec{
		Type: typeToHub(in.Spec.Type), Description: in.Spec.Description, Branches: in.Spec.Branches,
	}
	for _, p := range in.Spec.Parameters {
		out.Spec.Parameters = append(
			out.Spec.Parameters,
			v1alpha3.ParameterDefinition{Name: p.Name, Default: p.Value, Description: more.Parameters[p.Name]},
		)
	}
	for _, s := range in.Spec.Stages {
		kept := more.Steps[s.Name]
		out.Spec.Steps = append(out.Spec.Steps, v1alpha3.Step{Name: s.Name, Script: s.Sh, Env: kept.Env, TimeoutSeconds: kept.TimeoutSeconds})
	}
	if keep := in.Spec.KeepRuns; keep != nil {
		out.Spec.Discarder = &v1alpha3.Discarder{NumToKeep: *keep}
	}
	return nil
}

// PipelineFromHub converts in to out. It never fails.
func PipelineFromHub(in *v1alpha3.Pipeline, out *Pipeline) error {
	more := moreOfPipeline{Steps: map[string]moreOfStep{}, Parameters: map[string]string{}}
	out.Spec = PipelineSpec{Type: typeFromHub(in.Spec.Type), Description: in.Spec.Description, Branches: in.Spec.Branches}
	for _, p := range in.Spec.Parameters {
		out.Spec.Parameters = append(out.Spec.Parameters, Parameter{Name: p.Name, Value: p.Default})
		if p.Description != "" {
			more.Parameters[p.Name] = p.Description
		}
	}
	for _, s := range in.Spec.Steps {
		out.Spec.Stages = append(out.Spec.Stages, Stage{Name: s.Name, Sh: s.Script})
		if len(s.Env) > 0 || s.TimeoutSeconds != nil {
			more.Steps[s.Name] = moreOfStep{s.Env, s.TimeoutSeconds}
		}
	}
	if in.Spec.Discarder != nil {
		out.Spec.KeepRuns = &in.Spec.Discarder.NumToKeep
	}
	if len(more.Steps) == 0 && len(more.Parameters) == 0 {
		return leaveMore(&in.ObjectMeta, &out.ObjectMeta, nil)
	}
	return leaveMore(&in.ObjectMeta, &out.ObjectMeta, more)
}

// PipelineRunToHub converts in to out. It fails if MoreAnnotation was not written by PipelineRunFromHub.
func PipelineRunToHub(in *PipelineRun, out *v1alpha3.PipelineRun) error {
	var more moreOfRun
	if err := takeMore(&in.ObjectMeta, &out.ObjectMeta, &more); err != nil {
		return err
	}
	out.Spec = v1alpha3.PipelineRunSpec{PipelineRef: v1alpha3.PipelineReference{Name: in.Spec.Pipeline}}
	if in.Spec.Branch != "" {
		out.Spec.SCM = &v1alpha3.SCM{RefType: v1alpha3.Branch, RefName: in.Spec.Branch}
		if more.RefType != "" {
			out.Spec.SCM.RefType = more.RefType
		}
	}
	for _, p := range in.Spec.Parameters {
		out.Spec.Parameters = append(out.Spec.Parameters, v1alpha3.Parameter(p))
	}
	if in.Spec.Stop {
		out.Spec.Action = v1alpha3.Stop
	}
	out.Status = v1alpha3.PipelineRunStatus{
		Phase: phaseOf(in.Status.State), StartTime: in.Status.StartTime, CompletionTime: in.Status.EndTime, Conditions: more.Conditions,
	}
	for _, s := range in.Status.Stages {
		step := more.Steps[s.Name]
		step.Name, step.Phase = s.Name, phaseOf(s.State)
		out.Status.Steps = append(out.Status.Steps, step)
	}
	return nil
}

// PipelineRunFromHub converts in to out. It never fails.
func PipelineRunFromHub(in *v1alpha3.PipelineRun, out *PipelineRun) error {
	more := moreOfRun{Steps: map[string]v1alpha3.StepStatus{}, Conditions: in.Status.Conditions}
	out.Spec = PipelineRunSpec{Pipeline: in.Spec.PipelineRef.Name, Stop: in.Spec.Action == v1alpha3.Stop}
	if in.Spec.SCM != nil {
		out.Spec.Branch = in.Spec.SCM.RefName
		if in.Spec.SCM.RefType != v1alpha3.Branch {
			more.RefType = in.Spec.SCM.RefType
		}
	}
	for _, p := range in.Spec.Parameters {
		out.Spec.Parameters = append(out.Spec.Parameters, Parameter(p))
	}
	out.Status = PipelineRunStatus{State: StateOf(in.Status.Phase), StartTime: in.Status.StartTime, EndTime: in.Status.CompletionTime}
	for _, s := range in.Status.Steps {
		out.Status.Stages = append(out.Status.Stages, StageStatus{Name: s.Name, State: StateOf(s.Phase)})
		if s.ExitCode != nil || s.StartTime != nil || s.CompletionTime != nil {
			more.Steps[s.Name] = s
		}
	}
	if more.RefType == "" && len(more.Steps) == 0 && len(more.Conditions) == 0 {
		return leaveMore(&in.ObjectMeta, &out.ObjectMeta, nil)
	}
	return leaveMore(&in.ObjectMeta, &out.ObjectMeta, more)
}

// takeMore decodes the annotation of in into more, and removes it from out. It refuses an annotation that more cannot
// hold.
func takeMore(in, out *metav1.ObjectMeta, more any) error {
	text, ok := in.Annotations[MoreAnnotation]
	if !ok {
		return nil
	}
	if err := json.Unmarshal([]byte(text), more); err != nil {
		return fmt.Errorf("annotation %s: %w: remove it", MoreAnnotation, err)
	}
	out.Annotations = maps.Clone(in.Annotations)
	delete(out.Annotations, MoreAnnotation)
	if len(out.Annotations) == 0 {
		out.Annotations = nil
	}
	return nil
}

// leaveMore writes more to the annotation of out, or removes the annotation if more is nil.
func leaveMore(in, out *metav1.ObjectMeta, more any) error {
	if more == nil {
		if _, ok := in.Annotations[MoreAnnotation]; ok {
			out.Annotations = maps.Clone(in.Annotations)
			delete(out.Annotations, MoreAnnotation)
		}
		return nil
	}
	text, err := json.Marshal(more)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", MoreAnnotation, err)
	}
	out.Annotations = maps.Clone(in.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[MoreAnnotation] = string(text)
	return nil
}

func typeToHub(t PipelineType) v1alpha3.PipelineType {
	switch t {
	case PlainPipeline:
		return v1alpha3.PlainPipeline
	case MultiBranchPipeline:
		return v1alpha3.MultiBranchPipeline
	}
	return v1alpha3.PipelineType(t)
}

func typeFromHub(t v1alpha3.PipelineType) PipelineType {
	switch t {
	case v1alpha3.PlainPipeline:
		return PlainPipeline
	case v1alpha3.MultiBranchPipeline:
		return MultiBranchPipeline
	}
	return PipelineType(t)
}

func phaseOf(s State) v1alpha3.Phase {
	switch s {
	case Queued:
		return v1alpha3.PhasePending
	case Success:
		return v1alpha3.PhaseSucceeded
	case Failure:
		return v1alpha3.PhaseFailed
	case Aborted:
		return v1alpha3.PhaseCancelled
	}
	return v1alpha3.Phase(s) // Running and Unknown
}

// StateOf returns the state of this version for a phase.
func StateOf(p v1alpha3.Phase) State {
	switch p {
	case v1alpha3.PhasePending:
		return Queued
	case v1alpha3.PhaseSucceeded:
		return Success
	case v1alpha3.PhaseFailed:
		return Failure
	case v1alpha3.PhaseCancelled:
		return Aborted
	}
	return State(p) // Running and Unknown
}
