package v1

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// Gizmo is what a Widget was called.
type Gizmo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GizmoSpec           `json:"spec,omitempty"`
	Status shopv1.WidgetStatus `json:"status,omitempty"`
}

// GizmoSpec is what a Gizmo shall be.
type GizmoSpec struct {
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +optional
	Size string `json:"size,omitempty"`
	// pieces are written name=count.
	// +listType=set
	// +optional
	Pieces []string `json:"pieces,omitempty"`
	// +optional
	Options map[string]string `json:"options,omitempty"`
}

// GizmoList is a list of Gizmos.
type GizmoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Gizmo `json:"items"`
}

// SetDefaults_GizmoSpec makes a Gizmo large.
func SetDefaults_GizmoSpec(spec *GizmoSpec) {
	if spec.Size == "" {
		spec.Size = "large"
	}
}

// GizmoToHub converts spec and status.
func GizmoToHub(in *Gizmo, hub *shopv1.Widget) error {
	hub.Spec = shopv1.WidgetSpec{Replicas: in.Spec.Replicas, Size: in.Spec.Size, Options: in.Spec.Options}
	hub.Status = in.Status
	for _, piece := range in.Spec.Pieces {
		name, count, _ := strings.Cut(piece, "=")
		n, err := strconv.ParseInt(count, 10, 32)
		if err != nil {
			return fmt.Errorf("piece %q: want name=count", piece)
		}
		hub.Spec.Parts = append(hub.Spec.Parts, shopv1.Part{Name: name, Count: int32(n)})
	}
	return nil
}

// GizmoFromHub converts spec and status.
func GizmoFromHub(hub *shopv1.Widget, out *Gizmo) error {
	out.Spec = GizmoSpec{Replicas: hub.Spec.Replicas, Size: hub.Spec.Size, Options: hub.Spec.Options}
	out.Status = hub.Status
	for _, part := range hub.Spec.Parts {
		out.Spec.Pieces = append(out.Spec.Pieces, fmt.Sprintf("%s=%d", part.Name, part.Count))
	}
	return nil
}
