package reviews

import (
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Requirements that cannot be parsed are left out and reported. The others select more objects than the caller
// requests, so nothing is allowed by mistake.

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if len(s.Requirements) == 0 {
		if s.RawSelector == "" {
			return nil, nil
		}
		selector, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, err
		}
		all, _ := selector.Requirements()
		return all, nil
	}
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn:           selection.In,
		metav1.LabelSelectorOpNotIn:        selection.NotIn,
		metav1.LabelSelectorOpExists:       selection.Exists,
		metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var all labels.Requirements
	var errs []error
	for _, r := range s.Requirements {
		operator, ok := operators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, *requirement)
	}
	return all, errors.Join(errs...)
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if len(s.Requirements) == 0 {
		if s.RawSelector == "" {
			return nil, nil
		}
		selector, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return selector.Requirements(), nil
	}
	// A parsed selector has the operators = and != in place of In and NotIn.
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn:    selection.Equals,
		metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var all fields.Requirements
	var errs []error
	for _, r := range s.Requirements {
		operator, ok := operators[r.Operator]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("a field selector cannot have the operator %q", r.Operator))
		case len(r.Values) != 1:
			errs = append(errs, fmt.Errorf("a field selector with the operator %q has one value, not %d", r.Operator, len(r.Values)))
		default:
			all = append(all, fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
		}
	}
	return all, errors.Join(errs...)
}

// ignoredSelectors names the selectors that could not be parsed completely.
func ignoredSelectors(a authorizer.AttributesRecord) []string {
	var problems []string
	for _, selector := range []struct {
		name string
		kept int
		err  error
	}{
		{"fieldSelector", len(a.FieldSelectorRequirements), a.FieldSelectorParsingErr},
		{"labelSelector", len(a.LabelSelectorRequirements), a.LabelSelectorParsingErr},
	} {
		switch {
		case selector.err == nil:
		case selector.kept > 0:
			problems = append(problems, "spec.resourceAttributes."+selector.name+" partially ignored due to parse error")
		default:
			problems = append(problems, "spec.resourceAttributes."+selector.name+" ignored due to parse error")
		}
	}
	return problems
}
