package leading

import (
	"context"
	"reflect"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/facts/coordination"
)

// Leases returns the kind of leases in coordination.k8s.io.
func Leases() *define.Kind {
	return &define.Kind{
		Resource:          "leases",
		WithoutAge:        true,
		WithoutGeneration: true,
		CreateOnUpdate:    true,
		Versions: []*define.Version{
			{Facts: coordination.API, Type: reflect.TypeFor[coordinationv1.Lease](), ListType: reflect.TypeFor[coordinationv1.LeaseList]()},
		},
		Columns: []define.Column{
			column("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"], func(l *coordinationv1.Lease) any {
				if l.Spec.HolderIdentity == nil {
					return ""
				}
				return *l.Spec.HolderIdentity
			}),
			column("Age", described["creationTimestamp"], func(l *coordinationv1.Lease) any { return l.CreationTimestamp }),
		},
		PrepareForCreate: func(_ context.Context, obj runtime.Object) { prepareLease(obj.(*coordinationv1.Lease)) },
		PrepareForUpdate: func(_ context.Context, obj, _ runtime.Object) { prepareLease(obj.(*coordinationv1.Lease)) },
		Validate: func(_ context.Context, obj runtime.Object) field.ErrorList {
			return validateLease(obj.(*coordinationv1.Lease))
		},
	}
}

// prepareLease drops the fields of coordinated leader election, which is off by default in kube-apiserver.
func prepareLease(l *coordinationv1.Lease) {
	l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
}

func validateLease(l *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s <= 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseDurationSeconds"), *s, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	return errs
}
