package controlplane

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/operation"
)

// An operation is deleted with the object that it works on, and its action ends.
func TestGarbage_operations(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	server := annex.Server{
		Name:         "shop",
		ControlPlane: controlplane.New(controlplane.Options{}),
		Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Subresources(
				operation.Action("repair", func(ctx context.Context, _ *operation.Run[v1.Widget, v1.Inspection]) (*string, error) {
					<-ctx.Done()
					ended <- context.Cause(ctx)
					return nil, ctx.Err()
				})),
			operation.Kind(v1.API, operation.Options{}),
		}}},
	}
	all := dynamic.NewForConfigOrDie(annextest.Start(t, server))
	version := schema.GroupVersion{Group: "shop.example.com", Version: "v1"}
	widgets := all.Resource(version.WithResource("widgets")).Namespace("default")
	operations := all.Resource(version.WithResource("operations")).Namespace("default")
	object := func(kind string) *unstructured.Unstructured {
		return &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": version.String(), "kind": kind, "metadata": map[string]any{"name": "w"}},
		}
	}
	if _, err := widgets.Create(t.Context(), object("Widget"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	op, err := widgets.Create(t.Context(), object("Inspection"), metav1.CreateOptions{}, "repair")
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the operation runs", func(ctx context.Context) error {
		op, err := operations.Get(ctx, op.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(op.Object, "status", "phase"); phase != "Running" {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	if err := widgets.Delete(t.Context(), "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "the operation was deleted" {
		t.Errorf("the action ended for %v", err)
	}
	testwait.Until(t, "the operation is gone", func() bool {
		_, err := operations.Get(t.Context(), op.GetName(), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
