package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Widget is a thing with everything a kind can have.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WidgetSpec   `json:"spec,omitempty"`
	Status WidgetStatus `json:"status,omitempty"`
}

// WidgetSpec is what a Widget shall be.
type WidgetSpec struct {
	// replicas is how many there shall be.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// size is small, medium or large.
	// +optional
	Size string `json:"size,omitempty"`
	// parts are what it is made of.
	// +listType=map
	// +listMapKey=name
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +optional
	Parts []Part `json:"parts,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// options say the rest.
	// +optional
	Options map[string]string `json:"options,omitempty"`
}

// Part is a part of a Widget.
type Part struct {
	Name string `json:"name"`
	// +optional
	Count int32 `json:"count,omitempty"`
}

// WidgetStatus is what a Widget is.
type WidgetStatus struct {
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	Phase string `json:"phase,omitempty"`
	// selector is the label selector of what belongs to it.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// WidgetList is a list of Widgets.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Widget `json:"items"`
}

// SetDefaults_WidgetSpec makes a Widget medium.
func SetDefaults_WidgetSpec(spec *WidgetSpec) {
	if spec.Size == "" {
		spec.Size = "medium"
	}
}

// Shelf is a cluster-scoped kind without a status.
type Shelf struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Widgets []string `json:"widgets,omitempty"`
}

// ShelfList is a list of Shelves.
type ShelfList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Shelf `json:"items"`
}
