package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestGarbage_customResources(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]metav1.DeletionPropagation{"background": metav1.DeletePropagationBackground,
		"foreground": metav1.DeletePropagationForeground, "orphan": metav1.DeletePropagationOrphan} {
		t.Run(name, func(t *testing.T) {
			c := clientsOf(annextest.Start(t, cluster()))
			c.define(t, widgets(sizeAndColor))
			owner, err := c.widgets.Create(t.Context(), widget("owner", nil), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			dependent := widget("dependent", nil)
			dependent.SetOwnerReferences(
				[]metav1.OwnerReference{{APIVersion: "stable.example.com/v1", Kind: "Widget", Name: "owner", UID: owner.GetUID()}},
			)
			if _, err := c.widgets.Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := c.widgets.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			testwait.NoError(t, "the deletion is carried out", func(ctx context.Context) error {
				if _, err := c.widgets.Get(ctx, "owner", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("the owner: %w", err)
				}
				left, err := c.widgets.Get(ctx, "dependent", metav1.GetOptions{})
				switch {
				case policy != metav1.DeletePropagationOrphan && !apierrors.IsNotFound(err):
					return fmt.Errorf("the dependent: %w", err)
				case policy == metav1.DeletePropagationOrphan && (err != nil || len(left.GetOwnerReferences()) > 0):
					return fmt.Errorf("the orphan: %v, %w", left, err)
				}
				return nil
			})
		})
	}
}

// The conditions of a namespace list the remaining content, and its deletion includes resources that are not in the
// server's definition.
func TestNamespace_deletesCustomResources(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c := clientsOf(config)
	c.define(t, widgets(sizeAndColor))
	all := dynamic.NewForConfigOrDie(config)
	lab := widget("lab", nil)
	lab.Object = map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "lab"}}
	if _, err := all.Resource(namespacesResource).Create(t.Context(), lab, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inLab := all.Resource(widgetsResource).Namespace("lab")
	for name, finalizers := range map[string][]string{"free": nil, "held": {"example.com/hold"}} {
		w := widget(name, nil)
		w.SetFinalizers(finalizers)
		if _, err := inLab.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.Resource(namespacesResource).Delete(t.Context(), "lab", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace says what it waits for", func(ctx context.Context) error {
		ns, err := all.Resource(namespacesResource).Get(ctx, "lab", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, want := range []string{
			"Some resources are remaining: widgets.stable.example.com has 1 resource instances",
			"Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
		} {
			if said := fmt.Sprint(ns.Object["status"]); !strings.Contains(said, want) {
				return fmt.Errorf("%s is not in %s", want, said)
			}
		}
		return nil
	})
	if _, err := inLab.Patch(
		t.Context(),
		"held",
		types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace goes", func(ctx context.Context) error {
		if _, err := all.Resource(namespacesResource).Get(ctx, "lab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is there: %w", err)
		}
		return nil
	})
	if left, err := all.Resource(widgetsResource).List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
