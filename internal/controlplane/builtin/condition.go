package builtin

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateConditions(conditions []metav1.Condition, at *field.Path) field.ErrorList {
	return metavalidation.ValidateConditions(conditions, at)
}
