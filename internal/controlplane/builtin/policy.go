package builtin

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/util/jsonpath"

	"github.com/annexapi/annex/internal/model/define"
	facts "github.com/annexapi/annex/internal/model/facts/admissionregistration"
)

type (
	validatingPolicy        = admissionregistrationv1.ValidatingAdmissionPolicy
	validatingPolicyBinding = admissionregistrationv1.ValidatingAdmissionPolicyBinding
	mutatingPolicy          = admissionregistrationv1.MutatingAdmissionPolicy
	mutatingPolicyBinding   = admissionregistrationv1.MutatingAdmissionPolicyBinding
)

func validatingPolicies() *define.Kind {
	k := kind[validatingPolicy, admissionregistrationv1.ValidatingAdmissionPolicyList](
		"validatingadmissionpolicies",
		facts.API,
		rules[validatingPolicy]{
			fill:           func(p *validatingPolicy) { fillPolicy(&p.Spec.FailurePolicy, p.Spec.MatchConstraints) },
			validate:       validateValidatingPolicy,
			validateStatus: func(p, _ *validatingPolicy) field.ErrorList { return validatePolicyStatus(&p.Status) },
		},
		policyColumns(
			column("Validations", "Validations indicates the number of validation rules defined in this "+
				"configuration", func(p *validatingPolicy) any {
				return len(p.Spec.Validations)
			}),
			func(p *validatingPolicy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		)...)
	k.ClusterScoped, k.Status, k.Categories = true, true, []string{apiExtensions}
	return k
}

func validatingPolicyBindings() *define.Kind {
	return bindings[validatingPolicyBinding, admissionregistrationv1.ValidatingAdmissionPolicyBindingList](
		"validatingadmissionpolicybindings",
		func(b *validatingPolicyBinding) binding {
			return binding{b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		func(b *validatingPolicyBinding) field.ErrorList {
			return validateActions(b.Spec.ValidationActions, field.NewPath("spec", "validationActions"))
		},
	)
}

func mutatingPolicies() *define.Kind {
	k := kind[mutatingPolicy, admissionregistrationv1.MutatingAdmissionPolicyList](
		"mutatingadmissionpolicies",
		facts.API,
		rules[mutatingPolicy]{
			fill:     func(p *mutatingPolicy) { fillPolicy(&p.Spec.FailurePolicy, p.Spec.MatchConstraints) },
			validate: validateMutatingPolicy,
		},
		policyColumns(
			column("Mutations", "Mutation indicates the number of mutations rules defined in this configuration", func(p *mutatingPolicy) any {
				return len(p.Spec.Mutations)
			}),
			func(p *mutatingPolicy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		)...)
	k.ClusterScoped, k.Categories = true, []string{apiExtensions}
	return k
}

func mutatingPolicyBindings() *define.Kind {
	return bindings[mutatingPolicyBinding, admissionregistrationv1.MutatingAdmissionPolicyBindingList](
		"mutatingadmissionpolicybindings",
		func(b *mutatingPolicyBinding) binding {
			return binding{b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		func(b *mutatingPolicyBinding) field.ErrorList {
			return validateMutatingOperations(b.Spec.MatchResources, field.NewPath("spec", "matchResources"))
		},
	)
}

// binding has the fields that bindings of both kinds have.
type binding struct {
	policy string
	params *admissionregistrationv1.ParamRef
	match  *admissionregistrationv1.MatchResources
}

// bindings returns a kind with objects T and lists L. Validate adds to the mistakes in the common fields.
func bindings[T, L any](plural string, of func(*T) binding, validate func(*T) field.ErrorList) *define.Kind {
	k := kind[T, L](
		plural,
		facts.API,
		rules[T]{
			fill: func(b *T) { fillMatch(of(b).match) },
			validate: func(b *T) field.ErrorList {
				common := of(b)
				return append(validateBinding(common.policy, common.params, common.match), validate(b)...)
			},
		},
		bindingColumns(func(b *T) (string, *admissionregistrationv1.ParamRef) {
			common := of(b)
			return common.policy, common.params
		})...)
	k.ClusterScoped, k.Categories = true, []string{apiExtensions}
	return k
}

const unset = "<unset>"

func printedKind(k *admissionregistrationv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

func fillPolicy(failure **admissionregistrationv1.FailurePolicyType, match *admissionregistrationv1.MatchResources) {
	if *failure == nil {
		*failure = new(admissionregistrationv1.Fail)
	}
	fillMatch(match)
}

func policyColumns[T any](number define.Column, params func(*T) *admissionregistrationv1.ParamKind) []define.Column {
	return []define.Column{
		integer(number),
		column("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy", func(p *T) any {
			return printedKind(params(p))
		}),
		age(),
	}
}

func bindingColumns[T any](of func(*T) (string, *admissionregistrationv1.ParamRef)) []define.Column {
	return []define.Column{
		column("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to", func(b *T) any {
			name, _ := of(b)
			return name
		}),
		column("ParamRef", "ParamRef indicates the param resource which sets the configuration param", func(b *T) any {
			switch _, ref := of(b); {
			case ref == nil:
				return unset
			case ref.Name != "" && ref.Namespace != "":
				return ref.Namespace + "/" + ref.Name
			case ref.Name != "":
				return "*/" + ref.Name
			default:
				return ref.Selector.String()
			}
		}),
		age(),
	}
}

func validateValidatingPolicy(p *validatingPolicy) field.ErrorList {
	spec, at := &p.Spec, field.NewPath("spec")
	c := policyCompiler(
		plugincel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true},
		len(spec.Variables) > 0,
	)
	errs := validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)
	errs = append(
		errs,
		validateMatchConditions(
			spec.MatchConditions,
			&compiler{Compiler: plainCompiler(), declared: c.declared},
			at.Child("matchConditions"),
		)...)
	errs = append(errs, validateVariables(spec.Variables, c, at.Child("variables"))...)
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		errs = append(errs,
			field.Required(at.Child("validations"), "validations or auditAnnotations must contain at least one item"),
			field.Required(at.Child("auditAnnotations"), "validations or auditAnnotations must contain at least one item"))
	}
	for i := range spec.Validations {
		errs = append(errs, validateValidation(&spec.Validations[i], c, at.Child("validations").Index(i))...)
	}
	return append(errs, validateAnnotations(p.Name, spec.AuditAnnotations, c, at.Child("auditAnnotations"))...)
}

// validatePolicy validates the fields that policies of both kinds have.
func validatePolicy(
	failure *admissionregistrationv1.FailurePolicyType,
	params *admissionregistrationv1.ParamKind,
	match *admissionregistrationv1.MatchResources,
	at *field.Path,
) field.ErrorList {
	errs := oneOf(failure, true, at.Child("failurePolicy"), admissionregistrationv1.Fail, admissionregistrationv1.Ignore)
	if params != nil {
		errs = append(errs, validateParamKind(params, at.Child("paramKind"))...)
	}
	if match == nil {
		return append(errs, field.Required(at.Child("matchConstraints"), ""))
	}
	errs = append(errs, validateMatch(match, at.Child("matchConstraints"))...)
	if len(match.ResourceRules) == 0 {
		errs = append(errs, field.Required(at.Child("matchConstraints", "resourceRules"), ""))
	}
	return errs
}

func validateParamKind(k *admissionregistrationv1.ParamKind, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if k.APIVersion == "" {
		errs = append(errs, field.Required(at.Child("apiVersion"), ""))
	} else if gv, err := schema.ParseGroupVersion(k.APIVersion); err != nil {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), k.APIVersion, err.Error()))
	} else {
		for _, msg := range validation.IsDNS1123Subdomain(gv.Group) {
			if gv.Group != "" {
				errs = append(errs, field.Invalid(at.Child("apiVersion"), gv.Group, msg))
			}
		}
		for _, msg := range validation.IsDNS1035Label(gv.Version) {
			errs = append(errs, field.Invalid(at.Child("apiVersion"), gv.Version, msg))
		}
	}
	if k.Kind == "" {
		return append(errs, field.Required(at.Child("kind"), ""))
	}
	if msgs := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(at.Child("kind"), k.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

var reasons = []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge}

func validateValidation(v *admissionregistrationv1.Validation, c *compiler, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	expression, text, messageExpression := strings.TrimSpace(
		v.Expression,
	), strings.TrimSpace(
		v.Message,
	), strings.TrimSpace(
		v.MessageExpression,
	)
	if expression == "" {
		errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
	} else {
		errs = append(
			errs,
			c.check(&validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}, at.Child("expression"))...)
	}
	if v.MessageExpression != "" && messageExpression == "" {
		errs = append(errs, field.Invalid(at.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
	} else if messageExpression != "" {
		declared := c.declared
		declared.HasAuthorizer = false
		errs = append(
			errs,
			c.checkWith(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, declared, at.Child("messageExpression"))...)
	}
	switch {
	case v.Message != "" && text == "":
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(text, "\n\r"):
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must not contain line breaks"))
	}
	return append(errs, oneOf(v.Reason, false, at.Child("reason"), reasons...)...)
}

const (
	maxAnnotations     = 20
	maxValueExpression = 5 * 1024
)

func validateAnnotations(
	policy string,
	annotations []admissionregistrationv1.AuditAnnotation,
	c *compiler,
	at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	if len(annotations) > maxAnnotations {
		errs = append(errs, field.Invalid(at, annotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations)))
	}
	var seen []string
	for i, a := range annotations {
		at := at.Index(i)
		errs = append(errs, validateAnnotationKey(policy, a.Key, seen, at.Child("key"))...)
		seen = append(seen, a.Key)
		switch trimmed := strings.TrimSpace(a.ValueExpression); {
		case trimmed == "":
			errs = append(errs, field.Required(at.Child("valueExpression"), "valueExpression is not specified"))
		case len(trimmed) > maxValueExpression:
			errs = append(errs, field.TooLong(at.Child("valueExpression"), "", maxValueExpression))
		default:
			errs = append(errs, c.check(&validating.AuditAnnotationCondition{ValueExpression: a.ValueExpression}, at.Child("valueExpression"))...)
		}
	}
	return errs
}

func validateAnnotationKey(policy, key string, seen []string, at *field.Path) field.ErrorList {
	// The audit prefixes it with the policy's name.
	errs := validateQualified(policy+"/"+key, at)
	if slices.Contains(seen, key) {
		errs = append(errs, field.Duplicate(at, key))
	}
	return errs
}

func validateFieldRef(ref string, at *field.Path) field.ErrorList {
	if ref == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
		return field.ErrorList{field.Invalid(at, ref, fmt.Sprintf("invalid JSONPath: %v", err))}
	}
	return nil
}

func validatePolicyStatus(s *admissionregistrationv1.ValidatingAdmissionPolicyStatus) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("status")
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			at := at.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(at.Child("warning"), ""))
			}
			errs = append(errs, validateFieldRef(strings.TrimSpace(w.FieldRef), at.Child("fieldRef"))...)
		}
	}
	return append(errs, validateConditions(s.Conditions, at.Child("conditions"))...)
}

func validateBinding(policy string, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("spec")
	if policy == "" {
		errs = append(errs, field.Required(at.Child("policyName"), ""))
	} else {
		for _, msg := range apivalidation.NameIsDNSSubdomain(policy, false) {
			errs = append(errs, field.Invalid(at.Child("policyName"), policy, msg))
		}
	}
	if ref != nil {
		errs = append(errs, validateParamRef(ref, at.Child("paramRef"))...)
	}
	return append(errs, validateMatch(match, at.Child("matchResources"))...)
}

func validateParamRef(r *admissionregistrationv1.ParamRef, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Name != "" {
		for _, msg := range content.IsPathSegmentName(r.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), r.Name, msg))
		}
		if r.Selector != nil {
			errs = append(errs, field.Forbidden(at.Child("name"), "name and selector are mutually exclusive"))
		}
	}
	if r.Selector != nil {
		errs = append(errs, validateSelector(r.Selector, at.Child("selector"))...)
		if r.Name != "" {
			errs = append(errs, field.Forbidden(at.Child("selector"), "name and selector are mutually exclusive"))
		}
	}
	if r.Name == "" && r.Selector == nil {
		errs = append(errs, field.Required(at, "one of name or selector must be specified"))
	}
	return append(
		errs,
		oneOf(
			given(r.ParameterNotFoundAction),
			true,
			at.Child("parameterNotFoundAction"),
			admissionregistrationv1.DenyAction,
			admissionregistrationv1.AllowAction,
		)...)
}

func validateActions(actions []admissionregistrationv1.ValidationAction, at *field.Path) field.ErrorList {
	if len(actions) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	for i, a := range actions {
		errs = append(
			errs,
			oneOf(&a, false, at.Index(i), admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn)...)
		if slices.Contains(actions[:i], a) {
			errs = append(errs, field.Duplicate(at.Index(i), a))
		}
	}
	if slices.Contains(actions, admissionregistrationv1.Deny) && slices.Contains(actions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(at, actions, "must not contain both Deny and Warn (repeating the same validation failure "+
			"information in the API response and headers serves no purpose)"))
	}
	return errs
}

// mutatingOperations are the operations with an object to mutate.
var mutatingOperations = []admissionregistrationv1.OperationType{
	admissionregistrationv1.OperationAll,
	admissionregistrationv1.Connect,
	admissionregistrationv1.Create,
	admissionregistrationv1.Update,
}

func validateMutatingOperations(m *admissionregistrationv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for _, r := range m.ResourceRules {
		for _, o := range r.Operations {
			errs = append(errs, oneOf(&o, false, at.Child("resourceRules", "operations"), mutatingOperations...)...)
		}
	}
	return errs
}

func validateMutatingPolicy(p *mutatingPolicy) field.ErrorList {
	spec, at := &p.Spec, field.NewPath("spec")
	c := policyCompiler(plugincel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}, true)
	errs := validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)
	errs = append(errs, validateMutatingOperations(spec.MatchConstraints, at.Child("matchConstraints"))...)
	errs = append(
		errs,
		validateMatchConditions(
			spec.MatchConditions,
			&compiler{Compiler: plainCompiler(), declared: c.declared},
			at.Child("matchConditions"),
		)...)
	errs = append(errs, validateVariables(spec.Variables, c, at.Child("variables"))...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(at.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, validateMutation(&spec.Mutations[i], c, at.Child("mutations").Index(i))...)
	}
	return append(
		errs,
		oneOf(
			given(&spec.ReinvocationPolicy),
			true,
			at.Child("reinvocationPolicy"),
			admissionregistrationv1.IfNeededReinvocationPolicy,
			admissionregistrationv1.NeverReinvocationPolicy,
		)...)
}

func validateMutation(m *admissionregistrationv1.Mutation, c *compiler, at *field.Path) field.ErrorList {
	declared := c.declared
	declared.HasPatchTypes = true
	expression := func(text string, accessor plugincel.ExpressionAccessor, at *field.Path) field.ErrorList {
		if strings.TrimSpace(text) == "" {
			return field.ErrorList{field.Required(at.Child("expression"), "")}
		}
		return c.checkWith(accessor, declared, at.Child("expression"))
	}
	var errs field.ErrorList
	switch m.PatchType {
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(at.Child("applyConfiguration"), "must be specified when patchType is ApplyConfiguration"))
		} else {
			errs = append(
				errs,
				expression(
					m.ApplyConfiguration.Expression,
					&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression},
					at.Child("applyConfiguration"),
				)...)
		}
		if m.JSONPatch != nil {
			errs = append(errs, field.Invalid(at.Child("jsonPatch"), "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
	case admissionregistrationv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(at.Child("jsonPatch"), "must be specified when patchType is JSONPatch"))
		} else {
			errs = append(
				errs,
				expression(m.JSONPatch.Expression, &patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, at.Child("jsonPatch"))...)
		}
		if m.ApplyConfiguration != nil {
			errs = append(
				errs,
				field.Invalid(at.Child("applyConfiguration"), "{applyConfiguration}", "must not be specified when patchType is JSONPatch"),
			)
		}
	default:
		errs = append(
			errs,
			oneOf(
				given(&m.PatchType),
				true,
				at.Child("patchType"),
				admissionregistrationv1.PatchTypeApplyConfiguration,
				admissionregistrationv1.PatchTypeJSONPatch,
			)...)
	}
	return errs
}
