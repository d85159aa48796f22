package v1

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Play is a play in a theatre.
type Play struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the play shall be.
	Spec PlaySpec `json:"spec"`

	// status is how the play goes.
	// +optional
	Status PlayStatus `json:"status,omitempty"`
}

// PlaySpec is what a play shall be.
type PlaySpec struct {
	// title is what the posters say.
	Title string `json:"title"`

	// replicas is how often the play is given at the same time.
	// +optional
	// +default=1
	Replicas *int32 `json:"replicas,omitempty"`

	// roles are the parts in the play, each with a name of its own.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	Roles []Role `json:"roles,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// genres are words for what it is.
	// +optional
	// +listType=set
	Genres []string `json:"genres,omitempty"`

	// acts are the titles of the acts, in order.
	// +optional
	// +listType=atomic
	Acts []string `json:"acts,omitempty"`

	// props are how many of each thing are needed.
	// +optional
	Props map[string]int32 `json:"props,omitempty"`

	// stage is where it is given: the whole of it is one decision.
	// +optional
	// +structType=atomic
	Stage *Stage `json:"stage,omitempty"`
}

// Role is a part in a play.
type Role struct {
	// name is the character's.
	Name string `json:"name"`

	// actor is who plays it.
	// +optional
	Actor string `json:"actor,omitempty"`

	// lines is how much there is to learn.
	// +optional
	// +default=1
	Lines int32 `json:"lines,omitempty"`
}

// Stage is a place.
type Stage struct {
	// +optional
	House string `json:"house,omitempty"`
	// +optional
	Floor int32 `json:"floor,omitempty"`
}

// PlayStatus is how a play goes.
type PlayStatus struct {
	// replicas is how often the play is being given right now.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// selector selects the performances, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// conditions are what has been observed, by type.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// PlayList is a list of plays.
type PlayList struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the plays.
	Items []Play `json:"items"`
}

// ValidatePlay requires a title, and a name for every role.
func ValidatePlay(_ context.Context, play *Play) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if play.Spec.Title == "" {
		errs = append(errs, field.Required(spec.Child("title"), "the posters need it"))
	}
	if r := play.Spec.Replicas; r != nil && *r > 10 {
		errs = append(errs, field.Invalid(spec.Child("replicas"), *r, "must be at most 10"))
	}
	for i, role := range play.Spec.Roles {
		if role.Name == "" {
			errs = append(errs, field.Required(spec.Child("roles").Index(i).Child("name"), ""))
		}
	}
	return errs
}
