package v1alpha1

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Cat is an object of the resource cats.
type Cat struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CatSpec   `json:"spec,omitempty"`
	Status CatStatus `json:"status,omitempty"`
}

// CatSpec is what a Cat shall be. Users write it.
type CatSpec struct {
	// name is what the cat listens to.
	Name string `json:"name"`
}

// CatStatus is what a Cat is. Controllers write it, at /status.
type CatStatus struct {
	// conditions say how far the Cat has come to what its spec says.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CatList is a list of Cat objects.
type CatList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cat `json:"items"`
}

// ValidateCat checks what clients write, whatever version they speak. It sees
// defaults filled in.
func ValidateCat(_ context.Context, c *Cat) field.ErrorList {
	var errs field.ErrorList
	if c.Spec.Name == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "name"), "must be specified"))
	}
	return errs
}
