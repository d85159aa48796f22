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

// CatSpec is the desired state of a Cat. Users write it.
type CatSpec struct {
	// name is what the cat listens to.
	Name string `json:"name"`
}

// CatStatus is the observed state of a Cat. Controllers write it, at /status.
type CatStatus struct {
	// conditions report how far the Cat has reached the state in its spec.
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

// ValidateCat validates objects that clients write, in any version. It gets them with
// defaults filled in.
func ValidateCat(_ context.Context, c *Cat) field.ErrorList {
	var errs field.ErrorList
	if c.Spec.Name == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "name"), "must be specified"))
	}
	return errs
}
