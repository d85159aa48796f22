package builtin

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/annexapi/annex/internal/model/define"
	facts "github.com/annexapi/annex/internal/model/facts/coordinationv1beta1"
)

// leaseCandidates are for coordinated leader election, which other programs carry out. A kube-apiserver serves them,
// and carries out the election, only if configured to. The column descriptions are those of its tables.
func leaseCandidates() *define.Kind {
	k := kind[coordinationv1beta1.LeaseCandidate, coordinationv1beta1.LeaseCandidateList](
		"leasecandidates",
		facts.API,
		rules[coordinationv1beta1.LeaseCandidate]{validate: validateCandidate, validateUpdate: validateCandidateUpdate},
		column(
			"LeaseName",
			"leaseName is the name of the lease for which this candidate is contending. This field is immutable.",
			func(c *coordinationv1beta1.LeaseCandidate) any { return c.Spec.LeaseName },
		),
		column("BinaryVersion", "", func(c *coordinationv1beta1.LeaseCandidate) any { return c.Spec.BinaryVersion }),
		column("EmulationVersion", "", func(c *coordinationv1beta1.LeaseCandidate) any { return c.Spec.EmulationVersion }),
		age(),
	)
	k.WithoutGeneration, k.CreateOnUpdate = true, true
	k.ValidateName = func(name string, _ bool) []string { return validation.IsConfigMapKey(name) }
	return k
}

func validateCandidate(c *coordinationv1beta1.LeaseCandidate) field.ErrorList {
	spec, path := &c.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.LeaseName == "" {
		errs = append(errs, field.Required(path.Child("leaseName"), ""))
	}
	emulated, errs := semantic(errs, path.Child("emulationVersion"), spec.EmulationVersion)
	if spec.BinaryVersion == "" {
		errs = append(errs, field.Required(path.Child("binaryVersion"), ""))
	}
	binary, errs := semantic(errs, path.Child("binaryVersion"), spec.BinaryVersion)
	if spec.BinaryVersion != "" && spec.EmulationVersion != "" && binary.LessThan(emulated) {
		errs = append(
			errs,
			field.Invalid(path.Child("binaryVersion"), spec.BinaryVersion, "must be greater than or equal to `emulationVersion`"),
		)
	}
	if spec.Strategy == "" {
		return append(errs, field.Required(path.Child("strategy"), ""))
	}
	if spec.Strategy == coordinationv1.OldestEmulationVersion && emulated.EqualTo(zero) {
		errs = append(errs, field.Required(path.Child("emulationVersion"), "must be specified when `strategy` is 'OldestEmulationVersion'"))
	}
	// The path is kube-apiserver's.
	return append(errs, validateStrategy(path.Child("strategy", "strategy"), spec.Strategy)...)
}

func validateCandidateUpdate(c, old *coordinationv1beta1.LeaseCandidate) field.ErrorList {
	return apivalidation.ValidateImmutableField(c.Spec.LeaseName, old.Spec.LeaseName, field.NewPath("spec", "leaseName"))
}

var zero = version.MustParseSemantic("0.0.0")

// semantic parses a version. It returns zero for an invalid one.
func semantic(errs field.ErrorList, at *field.Path, text string) (*version.Version, field.ErrorList) {
	if text == "" {
		return zero, errs
	}
	parsed, err := version.ParseSemantic(text)
	if err != nil || text[0] < '0' || text[0] > '9' { // the library accepts leading spaces and a leading "v"
		return zero, append(errs, field.Invalid(at, text, "must be a valid semantic version"))
	}
	return parsed, errs
}

var strategies = []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}

// validateStrategy accepts any qualified name as a custom strategy.
func validateStrategy(at *field.Path, strategy coordinationv1.CoordinatedLeaseStrategy) field.ErrorList {
	var errs field.ErrorList
	if !strings.Contains(string(strategy), "/") {
		if !slices.Contains(strategies, strategy) {
			errs = append(errs, field.NotSupported(at, strategy, strategies))
		}
		return errs
	}
	for _, wrong := range validation.IsQualifiedName(string(strategy)) {
		errs = append(errs, field.Invalid(at, strategy, wrong))
	}
	return errs
}
