package builtin

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/manifest"

	"github.com/annexapi/annex/internal/model/define"
)

// Complete fills in the defaults of an object of admissionregistration.k8s.io/v1 that was not sent to a server, and
// validates it like a new object. It reports an error if the group has no such kind.
func Complete(obj runtime.Object) error {
	for _, k := range admissionKinds() {
		v := k.Versions[0]
		if reflect.TypeOf(obj) != reflect.PointerTo(v.Type) {
			continue
		}
		object, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		v.Default(obj)
		errs := apivalidation.ValidateObjectMetaAccessor(object, !k.ClusterScoped, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
		return append(errs, k.Validate(context.Background(), obj)...).ToAggregate()
	}
	return fmt.Errorf("%T is not an admission kind", obj)
}

// admissionKinds returns the kinds of admissionregistration.k8s.io. Their objects must not have the names of static
// configurations, because stored objects could not be distinguished from objects in files.
func admissionKinds() []*define.Kind {
	kinds := []*define.Kind{
		validatingWebhooks(), mutatingWebhooks(), validatingPolicies(), validatingPolicyBindings(), mutatingPolicies(), mutatingPolicyBindings(),
	}
	for _, k := range kinds {
		k.ValidateCreate = func(_ context.Context, obj runtime.Object) field.ErrorList {
			name := obj.(metav1.Object).GetName()
			if !strings.HasSuffix(name, manifest.StaticConfigSuffix) {
				return nil
			}
			return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, reserved)}
		}
		k.Warn = func(_ context.Context, obj runtime.Object) []string {
			if !strings.HasSuffix(obj.(metav1.Object).GetName(), manifest.StaticConfigSuffix) {
				return nil
			}
			return []string{"metadata.name: " + reserved}
		}
	}
	return kinds
}

const reserved = `names ending with "` + manifest.StaticConfigSuffix + `" are reserved for static manifest-based configurations and ` +
	`cannot be managed via the API`
