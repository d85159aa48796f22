package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	storagemigrationclient "k8s.io/client-go/kubernetes/typed/storagemigration/v1"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/storetest"
)

// migrate creates a migration of a resource.
func migrate(t *testing.T, all storagemigrationclient.StorageVersionMigrationInterface, name, group, resource string) {
	t.Helper()
	m := &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: group, Resource: resource}},
	}
	if _, err := all.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// conditions lists the true conditions with their messages, and the false ones.
func conditions(m *storagemigrationv1.StorageVersionMigration) string {
	var said []string
	for _, c := range m.Status.Conditions {
		said = append(said, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(said, "\n")
}

// The result is the migration, once it has the given conditions.
func waitForConditions(
	t *testing.T,
	all storagemigrationclient.StorageVersionMigrationInterface,
	name, want string,
) *storagemigrationv1.StorageVersionMigration {
	t.Helper()
	var m *storagemigrationv1.StorageVersionMigration
	testwait.NoError(t, "the migration says "+want, func(ctx context.Context) error {
		var err error
		if m, err = all.Get(ctx, name, metav1.GetOptions{}); err == nil && conditions(m) != want {
			err = errors.New(conditions(m))
		}
		return err
	})
	return m
}

const hasSucceeded = "Running False MigrationCompleted: Migration completed\nSucceeded True StorageVersionMigrationSucceeded: " +
	"Migration completed"

// storeAsV2 serves widgets in two versions, and stores them in the second.
func (c clients) storeAsV2(t *testing.T) {
	t.Helper()
	definitions := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
	testwait.NoError(t, "the definition has a second version", func(ctx context.Context) error {
		d, err := definitions.Get(ctx, "widgets.stable.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		second := d.Spec.Versions[0].DeepCopy()
		second.Name = "v2"
		d.Spec.Versions[0].Storage = false
		d.Spec.Versions = append(d.Spec.Versions[:1], *second)
		_, err = definitions.Update(ctx, d, metav1.UpdateOptions{})
		return err
	})
	testwait.NoError(t, "v2 is served", func(ctx context.Context) error {
		return c.discovery.RESTClient().Get().AbsPath("/apis/stable.example.com/v2/widgets").Do(ctx).Error()
	})
}

func (c clients) versions(t *testing.T) map[string]string {
	t.Helper()
	list, err := c.widgets.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, w := range list.Items {
		versions[w.GetName()] = w.GetResourceVersion()
	}
	return versions
}

func TestMigrations_rewriteCustomResources(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c, all := clientsOf(config), storagemigrationclient.NewForConfigOrDie(config).StorageVersionMigrations()
	c.define(t, widgets(sizeAndColor))
	for i := range 30 {
		if _, err := c.widgets.Create(
			t.Context(),
			widget(fmt.Sprint("w", i), map[string]any{"size": int64(i)}),
			metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	before := c.versions(t)
	migrate(t, all, "nothing-to-do", "stable.example.com", "widgets")
	waitForConditions(t, all, "nothing-to-do", hasSucceeded)
	if after := c.versions(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a migration without need wrote: %v, before %v", after, before)
	}
	c.storeAsV2(t)
	migrate(t, all, "to-v2", "stable.example.com", "widgets")
	m := waitForConditions(t, all, "to-v2", hasSucceeded)
	if m.Status.ResourceVersion == "" {
		t.Error("the status does not say up to which version objects were written")
	}
	after := c.versions(t)
	for name, version := range before {
		if after[name] == version {
			t.Errorf("%s was not written", name)
		}
	}
	if got, err := c.widgets.Get(
		t.Context(),
		"w7",
		metav1.GetOptions{},
	); err != nil || fmt.Sprint(got.Object["spec"]) != "map[size:7]" ||
		len(got.GetManagedFields()) != 1 {
		t.Errorf("a widget is %v, %v", got, err)
	}
	// Now the old version may be removed, and objects stay readable.
	patch := []byte(`{"status":{"storedVersions":["v2"]}}`)
	if _, err := c.definitions.ApiextensionsV1().
		CustomResourceDefinitions().
		Patch(t.Context(), "widgets.stable.example.com", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
}

func TestMigrations_failure_hasReason(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	all := storagemigrationclient.NewForConfigOrDie(config).StorageVersionMigrations()
	migrate(t, all, "reviews", "authentication.k8s.io", "tokenreviews")
	waitForConditions(t, all, "reviews", "Running False MigrationCompleted: Migration completed\nFailed True StorageVersionMigrationFailed: "+
		`resource "authentication.k8s.io/v1, Resource=tokenreviews" does not support discovery operations: [update patch list]`)
	migrate(t, all, "namespaces", "", "namespaces")
	waitForConditions(t, all, "namespaces", hasSucceeded)
}

// A resource may be defined after its migration.
func TestMigrations_waitForResource(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c, all := clientsOf(config), storagemigrationclient.NewForConfigOrDie(config).StorageVersionMigrations()
	migrate(t, all, "widgets", "stable.example.com", "widgets")
	waitForConditions(t, all, "widgets", "Running True MigrationRunning: The migration is running")
	c.define(t, widgets(sizeAndColor))
	waitForConditions(t, all, "widgets", hasSucceeded)
}

// The next server finishes a migration that a kill has interrupted.
func TestMigrations_afterKills_finish(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(victimEnv); dir != "" {
		serveUntilKilled(t, dir, embedded.Dir(""))
	}
	const objects = 600
	dir, random := t.TempDir(), storetest.Seeded(t)
	v := startVictim(t, dir)
	v.define(t, widgets(sizeAndColor))
	for i := range objects {
		v.make(t, "default", fmt.Sprint("w", i))
	}
	v.storeAsV2(t)
	events, err := v.all.Resource(widgetsResource).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	migrate(t, v.migrations, "to-v2", "stable.example.com", "widgets")
	for left := 1 + random.IntN(objects/2); left > 0; {
		event, open := <-events.ResultChan()
		if !open {
			t.Fatal("the watch ended")
		}
		if event.Type == watch.Modified {
			left--
		}
	}
	v.kill(t)
	events.Stop()
	v = startVictim(t, dir)
	m := waitForConditions(t, v.migrations, "to-v2", hasSucceeded)
	for name, version := range v.versions(t) {
		if order, err := resourceversion.CompareResourceVersion(version, m.Status.ResourceVersion); err != nil || order <= 0 {
			t.Errorf("%s was not written: %d, %v", name, order, err)
		}
	}
	v.kill(t)
}
