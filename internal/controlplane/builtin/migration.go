package builtin

import (
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/storagemigration"
)

type migration = storagemigrationv1.StorageVersionMigration

// storageMigrations are carried out by a controller in package migration.
func storageMigrations() *define.Kind {
	k := kind[migration, storagemigrationv1.StorageVersionMigrationList](
		"storageversionmigrations",
		storagemigration.API,
		rules[migration]{validate: validateMigration, validateUpdate: validateMigrationUpdate, validateStatus: validateMigrationStatus},
		define.Column{
			Name:        "Name",
			Type:        "string",
			Description: described["name"],
			Value:       func(obj runtime.Object) any { return obj.(metav1.Object).GetName() },
		},
		column("Resource", "GroupResource to migrate", func(m *migration) any {
			return (&metav1.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}).String()
		}),
		column("Status", "Status of the migration", func(m *migration) any { return migrationState(m) }),
	)
	k.ClusterScoped, k.Status, k.WithoutGeneration, k.WithoutName = true, true, true, true
	return k
}

func migrationState(m *migration) string {
	for _, t := range []storagemigrationv1.MigrationConditionType{storagemigrationv1.MigrationSucceeded,
		storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationRunning} {
		if meta.IsStatusConditionTrue(m.Status.Conditions, string(t)) {
			return string(t)
		}
	}
	return "Unknown"
}

func validateMigration(m *migration) field.ErrorList {
	var errs field.ErrorList
	resource := field.NewPath("spec", "resource")
	if m.Spec.Resource.Resource == "" {
		errs = append(errs, field.Required(resource.Child("resource"), "resource is required to be set"))
	} else {
		errs = append(errs, joined(resource.Child("resource"), m.Spec.Resource.Resource, validation.IsDNS1035Label)...)
	}
	if m.Spec.Resource.Group != "" {
		errs = append(errs, joined(resource.Child("group"), m.Spec.Resource.Group, validation.IsDNS1123Subdomain)...)
	}
	return errs
}

// joined returns all errors of a value as one.
func joined(at *field.Path, value string, check func(string) []string) field.ErrorList {
	if wrong := check(value); len(wrong) > 0 {
		return field.ErrorList{field.Invalid(at, value, strings.Join(wrong, ","))}
	}
	return nil
}

func validateMigrationUpdate(m, old *migration) field.ErrorList {
	type spec struct{ Resource metav1.GroupResource } // as kube-apiserver prints it
	return apivalidation.ValidateImmutableField(spec{m.Spec.Resource}, spec{old.Spec.Resource}, field.NewPath("spec"))
}

// validateMigrationStatus has the rules of a kube-apiserver: a migration that has ended stays so, and keeps its resource version.
func validateMigrationStatus(m, old *migration) field.ErrorList {
	status := field.NewPath("status")
	version, conditions := status.Child("resourceVersion"), status.Child("conditions")
	var errs field.ErrorList
	if v := m.Status.ResourceVersion; v != "" {
		if _, err := resourceversion.CompareResourceVersion(v, v); err != nil {
			errs = append(errs, field.Invalid(version, v, err.Error()))
		}
	}
	errs = append(errs, validateConditions(m.Status.Conditions, conditions)...)
	if before := old.Status.ResourceVersion; before != "" && before != m.Status.ResourceVersion {
		errs = append(errs, field.Invalid(version, m.Status.ResourceVersion, "field is immutable"))
	}
	is := func(m *migration, t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	invalid := func(detail string) { errs = append(errs, field.Invalid(conditions, m.Status.Conditions, detail)) }
	succeeded, failed := storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed
	if is(m, succeeded) && is(m, failed) {
		invalid("Both success and failed conditions cannot be true at the same time")
	}
	if is(old, succeeded) && !is(m, succeeded) {
		invalid("Success condition cannot be set to false once it is true")
	}
	if is(old, failed) && !is(m, failed) {
		invalid("Failed condition cannot be set to false once it is true")
	}
	return errs
}
