package apitest_test

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
)

// shop is a server with everything, for the tests of this package.
func shop() annex.Server {
	return annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name: "shop.example.com",
			Kinds: []annex.Kind{
				widgets(),
				annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().
					GracePeriod(30 * time.Second),
			},
		}},
	}
}

func widgets() *annex.KindBuilder[v1.Widget] {
	return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		ShortNames("wd").
		Categories("all").
		Versions(betaWidgets()).
		Validate(validateWidget).
		ValidateUpdate(func(_ context.Context, w, old *v1.Widget) field.ErrorList {
			if w.Spec.Options["frozen"] != old.Spec.Options["frozen"] && old.Spec.Options["frozen"] != "" {
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "options").Key("frozen"), "cannot be changed")}
			}
			return nil
		}).
		ValidateStatus(func(_ context.Context, w, _ *v1.Widget) field.ErrorList {
			if w.Status.Phase == "Impossible" {
				return field.ErrorList{field.Invalid(field.NewPath("status", "phase"), w.Status.Phase, "is impossible")}
			}
			return nil
		}).
		PrepareForCreate(func(_ context.Context, w *v1.Widget) {
			if w.Spec.Options["prepared"] == "please" {
				w.Spec.Options["prepared"] = "create"
			}
		}).
		Warn(func(_ context.Context, w *v1.Widget) []string {
			if w.Spec.Size == "large" {
				return []string{"spec.size: large widgets are hard to carry"}
			}
			return nil
		}).
		Scale(".spec.replicas", ".status.replicas", ".status.selector").
		SelectableField("spec.size", func(w *v1.Widget) string { return w.Spec.Size }).
		IndexFields("spec.size").
		IndexLabels("env", "tier").
		Columns(
			annex.Column[v1.Widget]{Name: "Size", Value: func(w *v1.Widget) any { return w.Spec.Size }},
			annex.Column[v1.Widget]{Name: "Replicas", Type: "integer", Wide: true, Value: func(w *v1.Widget) any { return w.Spec.Replicas }},
		)
}

func betaWidgets() *annex.VersionBuilder[v1beta1.Widget, v1.Widget] {
	return annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub).
		Deprecated("shop.example.com/v1beta1 Widget is deprecated; use v1")
}

func validateWidget(_ context.Context, w *v1.Widget) field.ErrorList {
	var errs field.ErrorList
	switch w.Spec.Size {
	case "small", "medium", "large":
	default:
		errs = append(errs, field.NotSupported(field.NewPath("spec", "size"), w.Spec.Size, []string{"large", "medium", "small"}))
	}
	if w.Spec.Replicas != nil && *w.Spec.Replicas > 100 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), *w.Spec.Replicas, "must be at most 100"))
	}
	return errs
}
