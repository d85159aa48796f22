// Package server defines the wardle API server, for its program and its tests.
package server

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"
	"github.com/annexapi/annex"
)

// New returns the definition of the server.
func New() annex.Server {
	return annex.Server{
		Name: "wardle",
		Groups: []annex.Group{{
			Name: "wardle.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1beta1.Flunder, v1beta1.FlunderList]("flunders", v1beta1.API).
					Versions(annex.Version(v1alpha1.API, v1alpha1.FlunderToHub, v1alpha1.FlunderFromHub)).
					StoredAs("v1alpha1").
					WithoutGeneration(). // as upstream's sample server stores them
					Validate(v1beta1.ValidateFlunder).
					AdmitWith(banFlunder, annex.Create, annex.Update).
					DefaultRoles().
					SelectableField("spec.referenceType", func(f *v1beta1.Flunder) string { return string(f.Spec.ReferenceType) }).
					Columns(annex.Column[v1beta1.Flunder]{Name: "Reference", Value: reference}),
				annex.KindOf[v1alpha1.Fischer, v1alpha1.FischerList]("fischers", v1alpha1.API).
					ClusterScoped().
					DefaultRoles().
					WithoutGeneration(),
			},
		}},
	}
}

func reference(f *v1beta1.Flunder) any {
	switch {
	case f.Spec.FischerReference != "":
		return "fischer/" + f.Spec.FischerReference
	case f.Spec.FlunderReference != "":
		return "flunder/" + f.Spec.FlunderReference
	}
	return nil
}

// banFlunder refuses flunders whose name a fischer disallows. Existing flunders stay and can be cleaned up: it
// refuses only creates, and changes of the spec of a flunder that is not being deleted.
func banFlunder(env *annex.Env) (annex.AdmitFunc[v1beta1.Flunder], error) {
	fischers, err := annex.ListerFor[v1alpha1.Fischer](env)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, r annex.Request[v1beta1.Flunder]) error {
		if !says(r) {
			return nil
		}
		all, err := fischers.List(ctx, "", labels.Everything())
		if err != nil {
			return err
		}
		for _, fischer := range all {
			if slices.Contains(fischer.DisallowedFlunders, r.Object.Name) {
				return fmt.Errorf("the name %q may not be used: fischer %q disallows it", r.Object.Name, fischer.Name)
			}
		}
		return nil
	}, nil
}

// says reports whether the request changes the spec of a flunder.
func says(r annex.Request[v1beta1.Flunder]) bool {
	return r.Operation == annex.Create ||
		r.Subresource == "" && r.Object.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(r.Object.Spec, r.Old.Spec)
}
