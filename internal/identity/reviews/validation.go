package reviews

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var specPath = field.NewPath("spec")

func checkAccess(_ context.Context, r *authorizationv1.SubjectAccessReview) error {
	errs := append(validateSubject(&r.Spec), validateMetadata(r.ObjectMeta, "must be empty")...)
	return invalid("SubjectAccessReview", errs)
}

func checkSelfAccess(_ context.Context, r *authorizationv1.SelfSubjectAccessReview) error {
	errs := validateAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return invalid("SelfSubjectAccessReview", append(errs, validateMetadata(r.ObjectMeta, "must be empty")...))
}

func checkLocalAccess(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) error {
	metadata := r.ObjectMeta
	metadata.Namespace = ""
	errs := append(validateSubject(&r.Spec), validateMetadata(metadata, "must be empty except for namespace")...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		errs = append(errs, field.Invalid(specPath.Child("resourceAttributes", "namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if a := r.Spec.NonResourceAttributes; a != nil {
		errs = append(errs, field.Invalid(specPath.Child("nonResourceAttributes"), a, "disallowed on this kind of request"))
	}
	if err := invalid("LocalSubjectAccessReview", errs); err != nil {
		return err
	}
	return checkNamespace(ctx, r)
}

func invalid(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), "", errs)
}

func validateMetadata(metadata metav1.ObjectMeta, want string) field.ErrorList {
	metadata.ManagedFields = nil
	if apiequality.Semantic.DeepEqual(metadata, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), metadata, want)}
}

func validateSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(specPath.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateAttributes(resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) field.ErrorList {
	var errs field.ErrorList
	if (resource == nil) == (path == nil) {
		errs = append(errs, field.Invalid(specPath, path, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if resource == nil {
		return errs
	}
	at := specPath.Child("resourceAttributes")
	if s := resource.FieldSelector; s != nil {
		at := at.Child("fieldSelector")
		errs = append(errs, validateSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, r := range s.Requirements {
			// A client may use operators of a later release.
			options := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(r, options, at.Child("requirements").Index(i))...)
		}
	}
	if s := resource.LabelSelector; s != nil {
		at := at.Child("labelSelector")
		errs = append(errs, validateSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, r := range s.Requirements {
			options := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(r, options, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func validateSelector(at *field.Path, raw string, requirements int) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{
			field.Required(at.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at)),
		}
	}
	return nil
}
