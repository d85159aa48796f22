package builtin

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/facts/coordination"
)

func leases() *define.Kind {
	k := kind[coordinationv1.Lease, coordinationv1.LeaseList]("leases", coordination.API,
		rules[coordinationv1.Lease]{create: prepareLease, update: prepareLeaseUpdate, validate: validateLease},
		column("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"], func(l *coordinationv1.Lease) any {
			if l.Spec.HolderIdentity == nil {
				return ""
			}
			return *l.Spec.HolderIdentity
		}), age(),
	)
	k.WithoutGeneration, k.CreateOnUpdate = true, true
	return k
}

// prepareLease leaves out what is for coordinated leader election, which a kube-apiserver does
// not do by default.
func prepareLease(l *coordinationv1.Lease) {
	l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil
}

func prepareLeaseUpdate(l, _ *coordinationv1.Lease) { prepareLease(l) }

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
