package v1alpha1

import (
	"fmt"

	"example.com/wardle/apis/wardle/v1beta1"
)

// FlunderToHub sets the spec and status of out to those of in. It never fails.
//
// A reference with an unknown type, or without a type, becomes a flunderReference: the hub holds it until validation
// refuses it, and it is converted back unchanged. An empty type counts as no type.
func FlunderToHub(in *Flunder, out *v1beta1.Flunder) error {
	out.Spec = specToHub(in.Spec)
	out.Status = v1beta1.FlunderStatus(in.Status)
	return nil
}

// FlunderFromHub sets the spec and status of out to those of in. It fails rather than lose a value that this version
// cannot represent, such as both references at once. It does not fail for valid flunders.
func FlunderFromHub(in *v1beta1.Flunder, out *Flunder) error {
	spec := specFromHub(in.Spec)
	if specToHub(spec) != in.Spec {
		return fmt.Errorf("v1alpha1 cannot hold flunderReference %q and fischerReference %q with referenceType %q",
			in.Spec.FlunderReference, in.Spec.FischerReference, in.Spec.ReferenceType)
	}
	out.Spec = spec
	out.Status = FlunderStatus(in.Status)
	return nil
}

func specToHub(in FlunderSpec) v1beta1.FlunderSpec {
	var out v1beta1.FlunderSpec
	if in.ReferenceType != nil {
		out.ReferenceType = v1beta1.ReferenceType(*in.ReferenceType)
	}
	if out.ReferenceType == v1beta1.FischerReferenceType {
		out.FischerReference = in.Reference
	} else {
		out.FlunderReference = in.Reference
	}
	return out
}

func specFromHub(in v1beta1.FlunderSpec) FlunderSpec {
	out := FlunderSpec{Reference: in.FlunderReference}
	if in.ReferenceType == v1beta1.FischerReferenceType {
		out.Reference = in.FischerReference
	}
	if in.ReferenceType != "" {
		t := ReferenceType(in.ReferenceType)
		out.ReferenceType = &t
	}
	return out
}
