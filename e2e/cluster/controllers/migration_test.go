package controllers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// migrations are for resources that kube-controller-manager begins with soon. It learns of others after half a
// minute.
var migrations = map[string]metav1.GroupResource{
	"leases":     {Group: "coordination.k8s.io", Resource: "leases"},
	"namespaces": {Resource: "namespaces"},
	"reviews":    {Group: "authentication.k8s.io", Resource: "tokenreviews"},
}

// A migration ends in the same state, with the same messages.
func TestMigration_status(t *testing.T) {
	servers := both(t)
	for name, resource := range migrations {
		for _, client := range servers {
			migration := &storagemigrationv1.StorageVersionMigration{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: resource},
			}
			if _, err := client.StoragemigrationV1().StorageVersionMigrations().Create(t.Context(), migration, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name := range migrations {
		t.Run(name, func(t *testing.T) {
			said := map[string]string{}
			for server, client := range servers {
				testwait.NoError(t, server+" ends the migration", func(ctx context.Context) error {
					m, err := client.StoragemigrationV1().StorageVersionMigrations().Get(ctx, name, metav1.GetOptions{})
					if err != nil {
						return err
					}
					said[server] = state(m)
					if c := meta.FindStatusCondition(
						m.Status.Conditions,
						string(storagemigrationv1.MigrationRunning),
					); c == nil ||
						c.Status == metav1.ConditionTrue {
						return errors.New(said[server])
					}
					return nil
				})
			}
			if said["kube"] != said["annex"] {
				t.Errorf("kube says  %s\nannex says %s", said["kube"], said["annex"])
			}
		})
	}
}

func state(m *storagemigrationv1.StorageVersionMigration) string {
	said := fmt.Sprint("versioned ", m.Status.ResourceVersion != "")
	for _, c := range m.Status.Conditions {
		said += fmt.Sprintf("; %s %s %s %q %d", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
	}
	return said
}
