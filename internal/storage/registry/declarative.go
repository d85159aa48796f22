package registry

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/annexapi/annex/internal/model/define"
)

// Validator runs generated validation, like the scheme in the API machinery. The API machinery calls it for the
// request's version only; here it is called for the hub and for the request's version.
type Validator interface {
	Validate(ctx context.Context, options map[string]bool, obj runtime.Object, subresources ...string) field.ErrorList
	ValidateUpdate(ctx context.Context, options map[string]bool, obj, old runtime.Object, subresources ...string) field.ErrorList
	HasValidationFunc(obj runtime.Object) bool
}

var (
	_ rest.DeclarativeValidationStrategy = strategy{}
	_ rest.DeclarativeValidationStrategy = statusStrategy{}
)

// DeclarativeValidationConfig returns the configuration that the API machinery passes to ValidateDeclaratively.
func (s strategy) DeclarativeValidationConfig(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{Options: s.options}
}

// FeatureGates returns the states of this process's feature gates, for Options.
func FeatureGates() map[string]bool {
	states := map[string]bool{}
	for name := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		states[string(name)] = utilfeature.DefaultFeatureGate.Enabled(name)
	}
	return states
}

// validationOptions returns the options of a kind's generated validation, which must not be changed. A missing option would
// be an internal error in every response, so each option has a value here: the feature gate of the same name, as in the
// strategies of kube-apiserver; false if this process has no such feature; and the kind's own declaration overrides both.
func validationOptions(k *define.Kind, gates map[string]bool) map[string]bool {
	if gates == nil {
		gates = FeatureGates()
	}
	more := map[string]bool{}
	for _, facts := range k.Facts() {
		for _, name := range facts.ValidationOptions {
			if _, known := gates[name]; !known {
				more[name] = false
			}
		}
	}
	maps.Copy(more, k.Primary().ValidationOptions)
	if len(more) == 0 {
		return gates
	}
	options := maps.Clone(gates)
	maps.Copy(options, more)
	return options
}

// ValidateDeclaratively adds the errors of generated validation to errs. The hub's validation runs for every request
// version. In the API machinery, a client chooses the rules by choosing a version, and can bypass rules that way.
func (s strategy) ValidateDeclaratively(
	ctx context.Context,
	obj, old runtime.Object,
	errs field.ErrorList,
	op operation.Type,
	config rest.DeclarativeValidationConfig,
) field.ErrorList {
	return s.declarative(ctx, obj, old, errs, op, config)
}

// ValidateDeclaratively is like that of the main endpoint, with the rules of /status.
func (s statusStrategy) ValidateDeclaratively(
	ctx context.Context,
	obj, old runtime.Object,
	errs field.ErrorList,
	op operation.Type,
	config rest.DeclarativeValidationConfig,
) field.ErrorList {
	return s.declarative(ctx, obj, old, errs, op, config, "status")
}

func (s strategy) declarative(
	ctx context.Context,
	obj, old runtime.Object,
	errs field.ErrorList,
	op operation.Type,
	config rest.DeclarativeValidationConfig,
	subresources ...string,
) field.ErrorList {
	var found field.ErrorList
	run := func(obj, old runtime.Object) {
		if op == operation.Update {
			found = append(found, s.validator.ValidateUpdate(ctx, config.Options, obj, old, subresources...)...)
		} else {
			found = append(found, s.validator.Validate(ctx, config.Options, obj, subresources...)...)
		}
	}
	if s.validator.HasValidationFunc(obj) {
		run(obj, old)
	}
	if v := s.requested(ctx); v != nil && v.Type != s.kind.Hub().Type && s.validator.HasValidationFunc(v.New()) {
		converted, err := s.convertor.ConvertToVersion(obj, v.GroupVersion)
		if err != nil {
			return append(errs, field.InternalError(nil, err))
		}
		var before runtime.Object
		if op == operation.Update {
			if before, err = s.convertor.ConvertToVersion(old, v.GroupVersion); err != nil {
				return append(errs, field.InternalError(nil, err))
			}
		}
		run(converted, before)
	}
	if s.kind.BuiltIn {
		errs = removeRepeated(errs)
	}
	if len(found) == 0 {
		return errs
	}
	beta := utilfeature.DefaultFeatureGate.Enabled(features.DeclarativeValidationBeta)
	enforced := validate.FilterEnforcedDeclarativeErrors(ctx, found, beta)
	errs = validate.FilterCoveredHandwrittenErrors(ctx, errs.MarkFromImperative(), enforced, beta)
	for _, e := range enforced {
		same := func(other *field.Error) bool { return other.Error() == e.Error() }
		if !slices.ContainsFunc(errs, same) {
			errs = append(errs, e)
		}
	}
	return errs
}

// removeRepeated removes repeated errors. The API machinery validates the metadata of updates twice, but kube-apiserver reports
// each error once.
func removeRepeated(errs field.ErrorList) field.ErrorList {
	var all field.ErrorList
	for _, e := range errs {
		if !slices.ContainsFunc(all, func(other *field.Error) bool { return other.Error() == e.Error() }) {
			all = append(all, e)
		}
	}
	return all
}
