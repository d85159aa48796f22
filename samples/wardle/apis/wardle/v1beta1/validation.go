package v1beta1

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateFlunder checks that the reference which the type of a Flunder selects is set, and the other one is not.
func ValidateFlunder(_ context.Context, f *Flunder) field.ErrorList {
	return validateFlunderSpec(&f.Spec, field.NewPath("spec"))
}

func validateFlunderSpec(spec *FlunderSpec, path *field.Path) field.ErrorList {
	flunder, fischer := path.Child("flunderReference"), path.Child("fischerReference")

	switch spec.ReferenceType {
	case FlunderReferenceType:
		return exactlyOne(spec.ReferenceType, flunder, spec.FlunderReference, fischer, spec.FischerReference)
	case FischerReferenceType:
		return exactlyOne(spec.ReferenceType, fischer, spec.FischerReference, flunder, spec.FlunderReference)
	case "":
		if spec.FlunderReference != "" || spec.FischerReference != "" {
			return field.ErrorList{field.Required(path.Child("referenceType"), "must say what the reference is to")}
		}
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child("referenceType"), spec.ReferenceType,
		[]ReferenceType{FischerReferenceType, FlunderReferenceType})}
}

// exactlyOne checks that the reference which t selects is set, and the other one is not.
func exactlyOne(t ReferenceType, named *field.Path, value string, other *field.Path, otherValue string) field.ErrorList {
	var errs field.ErrorList
	if value == "" {
		errs = append(errs, field.Required(named, fmt.Sprintf("must be set if referenceType is %s", t)))
	}
	if otherValue != "" {
		errs = append(errs, field.Invalid(other, otherValue, fmt.Sprintf("must not be set if referenceType is %s", t)))
	}
	return errs
}
