package controlplane

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testwait"
)

func TestCustomResourcesAreCollectedWithTheirOwners(t *testing.T) {
	for name, policy := range map[string]metav1.DeletionPropagation{"background": metav1.DeletePropagationBackground, "foreground": metav1.DeletePropagationForeground, "orphan": metav1.DeletePropagationOrphan} {
		t.Run(name, func(t *testing.T) {
			c := clientsOf(annextest.Start(t, cluster()))
			c.define(t, widgets(sizeAndColor))
			owner, err := c.widgets.Create(t.Context(), widget("owner", nil), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			dependent := widget("dependent", nil)
			dependent.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "stable.example.com/v1", Kind: "Widget", Name: "owner", UID: owner.GetUID()}})
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
