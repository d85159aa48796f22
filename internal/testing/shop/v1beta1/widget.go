package v1beta1

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// Widget says its parts in another way than the hub.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WidgetSpec      `json:"spec,omitempty"`
	Status v1.WidgetStatus `json:"status,omitempty"`
}

// WidgetSpec is what a Widget shall be.
type WidgetSpec struct {
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +optional
	Size string `json:"size,omitempty"`
	// parts are written name=count.
	// +listType=set
	// +optional
	Parts []string `json:"parts,omitempty"`
	// +optional
	Options map[string]string `json:"options,omitempty"`
}

// WidgetList is a list of Widgets.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Widget `json:"items"`
}

// SetDefaults_WidgetSpec makes a Widget small: versions may have defaults of their
// own.
func SetDefaults_WidgetSpec(spec *WidgetSpec) {
	if spec.Size == "" {
		spec.Size = "small"
	}
}

// WidgetToHub converts spec and status.
func WidgetToHub(in *Widget, hub *v1.Widget) error {
	hub.Spec = v1.WidgetSpec{Replicas: in.Spec.Replicas, Size: in.Spec.Size, Options: in.Spec.Options}
	hub.Status = in.Status
	for _, part := range in.Spec.Parts {
		name, count, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(count, 10, 32)
		if err != nil {
			return fmt.Errorf("part %q: want name=count", part)
		}
		hub.Spec.Parts = append(hub.Spec.Parts, v1.Part{Name: name, Count: int32(n)})
	}
	return nil
}

// WidgetFromHub converts spec and status.
func WidgetFromHub(hub *v1.Widget, out *Widget) error {
	out.Spec = WidgetSpec{Replicas: hub.Spec.Replicas, Size: hub.Spec.Size, Options: hub.Spec.Options}
	out.Status = hub.Status
	for _, part := range hub.Spec.Parts {
		out.Spec.Parts = append(out.Spec.Parts, fmt.Sprintf("%s=%d", part.Name, part.Count))
	}
	return nil
}
