package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
)

// These names are those of packages that generated code imports.
type (
	runtime struct{}
	spec    struct{}
)

func schema() (runtime, spec) { return runtime{}, spec{} }

// Tool is a kind.
type Tool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Parts Parts `json:"parts,omitempty"`
	Edge  Edge  `json:"edge,omitempty"`
}

// ToolList is its list.
type ToolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tool `json:"items"`
}

// Parts copies itself.
type Parts struct {
	Names  []string `json:"names,omitempty"`
	Copies int      `json:"-"`
}

// DeepCopyInto counts copies.
func (p *Parts) DeepCopyInto(out *Parts) {
	out.Names = append([]string(nil), p.Names...)
	out.Copies = p.Copies + 1
}

// Edge names itself.
type Edge struct {
	// +optional
	Sharp bool `json:"sharp"`
}

// OpenAPIModelName is not what would be generated.
func (Edge) OpenAPIModelName() string { return "com.example.Edge" }

// SetObjectDefaults_Tool is not what would be generated.
func SetObjectDefaults_Tool(in *Tool) { in.Edge.Sharp = true }

// DeepCopyObject is written by hand for the list.
func (l *ToolList) DeepCopyObject() k8sruntime.Object { return l.DeepCopy() }
