package main

import (
	"context"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"

	restaurantv1beta1 "example.com/restaurant/apis/restaurant/v1beta1"
)

// admitPizza refuses pizzas with unknown toppings. If a topping is removed later, writes that do not change the spec
// of its pizzas still pass.
func admitPizza(env *annex.Env) (annex.AdmitFunc[restaurantv1beta1.Pizza], error) {
	toppings, err := annex.ListerFor[restaurantv1beta1.Topping](env)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, r annex.Request[restaurantv1beta1.Pizza]) error {
		if !orders(r) {
			return nil
		}
		for _, wanted := range r.Object.Spec.Toppings {
			_, err := toppings.Get(ctx, "", wanted.Name)
			if apierrors.IsNotFound(err) { // the cache may be stale
				_, err = toppings.GetLatest(ctx, "", wanted.Name)
			}
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("there is no topping %q", wanted.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// orders reports whether a request changes the toppings of a pizza.
func orders(r annex.Request[restaurantv1beta1.Pizza]) bool {
	switch r.Operation {
	case annex.Create:
		return true
	case annex.Update:
		return r.Subresource == "" && r.Object.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(r.Object.Spec, r.Old.Spec)
	}
	return false
}

// validateTopping refuses prices below 0, and prices that JSON cannot represent.
func validateTopping(_ context.Context, t *restaurantv1beta1.Topping) field.ErrorList {
	if cost := t.Spec.Cost; !(cost >= 0) || math.IsInf(cost, 0) {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "cost"), cost, "must be greater than or equal to 0")}
	}
	return nil
}
