package builtin

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// baseEnv is the environment in which expressions are compiled. Creating it takes milliseconds, and it never changes.
var baseEnv = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

// compiler compiles expressions in the same environment as at run time. New expressions may only use features that the
// previous release supports as well, so that a downgrade does not break them.
type compiler struct {
	plugincel.Compiler
	variables *plugincel.CompositedCompiler // nil outside of policies
	declared  plugincel.OptionalVariableDeclarations
	err       error
}

// plainCompiler has none of the variables of policies.
var plainCompiler = sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(baseEnv()) })

// policyCompiler compiles the expressions of one policy, which may have variables.
func policyCompiler(declared plugincel.OptionalVariableDeclarations, variables bool) *compiler {
	if !variables {
		return &compiler{Compiler: plainCompiler(), declared: declared}
	}
	composited, err := plugincel.NewCompositedCompiler(baseEnv())
	if err != nil {
		return &compiler{err: err}
	}
	return &compiler{Compiler: composited, variables: composited, declared: declared}
}

// check returns the errors of an expression.
func (c *compiler) check(expression plugincel.ExpressionAccessor, at *field.Path) field.ErrorList {
	return c.checkWith(expression, c.declared, at)
}

func (c *compiler) checkWith(
	expression plugincel.ExpressionAccessor,
	declared plugincel.OptionalVariableDeclarations,
	at *field.Path,
) field.ErrorList {
	if c.err != nil {
		return field.ErrorList{field.InternalError(at, c.err)}
	}
	result := c.CompileCELExpression(expression, declared, environment.NewExpressions)
	return mistakeOf(result.Error, expression.GetExpression(), at)
}

// add validates a variable and makes it available to later expressions.
func (c *compiler) add(variable plugincel.NamedExpressionAccessor, at *field.Path) field.ErrorList {
	if c.err != nil {
		return field.ErrorList{field.InternalError(at, c.err)}
	}
	result := c.variables.CompileAndStoreVariable(variable, c.declared, environment.NewExpressions)
	return mistakeOf(result.Error, variable.GetExpression(), at)
}

func mistakeOf(err *apiservercel.Error, expression string, at *field.Path) field.ErrorList {
	switch {
	case err == nil:
		return nil
	case err.Type == apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(at, err.Detail)}
	case err.Type == apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(at, expression, err.Detail)}
	}
	return field.ErrorList{field.InternalError(at, err)}
}

const maxMatchConditions = 64

// validateMatchConditions validates the conditions of a webhook or a policy.
func validateMatchConditions(conditions []admissionregistrationv1.MatchCondition, c *compiler, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxMatchConditions {
		errs = append(errs, field.TooMany(at, len(conditions), maxMatchConditions))
	}
	var seen []string
	for i := range conditions {
		condition, at := &conditions[i], at.Index(i)
		if strings.TrimSpace(condition.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), ""))
		} else {
			errs = append(errs, c.check((*matchconditions.MatchCondition)(condition), at.Child("expression"))...)
		}
		if condition.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		errs = append(errs, validateQualified(condition.Name, at.Child("name"))...)
		if slices.Contains(seen, condition.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), condition.Name))
		}
		seen = append(seen, condition.Name)
	}
	return errs
}

// variable is a variable of a policy.
type variable struct{ name, expression string }

var _ plugincel.NamedExpressionAccessor = variable{}

func (v variable) GetName() string        { return v.name }
func (v variable) GetExpression() string  { return v.expression }
func (variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType, cel.DynType} }

func validateVariables(variables []admissionregistrationv1.Variable, c *compiler, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range variables {
		at := at.Index(i)
		if strings.TrimSpace(v.Name) == "" {
			errs = append(errs, field.Required(at.Child("name"), "name is not specified"))
		} else if !identifier.MatchString(v.Name) || slices.Contains(reservedWords, v.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
		} else {
			errs = append(errs, c.add(variable{v.Name, v.Expression}, at.Child("expression"))...)
		}
	}
	return errs
}

// oneOf validates a value of an enumeration. A nil pointer is an error if the value is required.
func oneOf[T ~string](value *T, required bool, at *field.Path, supported ...T) field.ErrorList {
	switch {
	case required && value == nil:
		return field.ErrorList{field.Required(at, "")}
	case value == nil || slices.Contains(supported, *value):
		return nil
	}
	return field.ErrorList{field.NotSupported(at, *value, supported)}
}

// given returns nil for an empty value.
func given[T ~string](value *T) *T {
	if value != nil && *value == "" {
		return nil
	}
	return value
}

func only(what, where string) string {
	return fmt.Sprintf("if '%s' is present, must not specify other %s", what, where)
}
