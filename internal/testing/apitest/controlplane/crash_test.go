package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	storagemigrationclient "k8s.io/client-go/kubernetes/typed/storagemigration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/storetest"
)

const victimEnv = "ANNEX_CRASH_VICTIM"

var (
	widgetsResource    = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "widgets"}
	namespacesResource = corev1.SchemeGroupVersion.WithResource("namespaces")
)

// victim is a server in a process that the test kills.
type victim struct {
	clients
	all        dynamic.Interface
	migrations storagemigrationclient.StorageVersionMigrationInterface
	config     *rest.Config
	cmd        *exec.Cmd
}

func startVictim(t *testing.T, dir string) *victim {
	t.Helper()
	v := &victim{cmd: exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")}
	v.cmd.Env = append(os.Environ(), victimEnv+"="+dir)
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	v.config = config
	v.clients, v.all = clientsOf(config), dynamic.NewForConfigOrDie(config)
	v.migrations = storagemigrationclient.NewForConfigOrDie(config).StorageVersionMigrations()
	return v
}

func (v *victim) kill(t *testing.T) {
	t.Helper()
	if err := v.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _ = v.cmd.Wait(); v.cmd.ProcessState.Exited() {
		t.Fatalf("the server ended of itself: %s", v.cmd.ProcessState)
	}
}

// serveUntilKilled is the main function of a victim.
func serveUntilKilled(t *testing.T, dir string, storage annex.Storage) {
	instance, err := annex.New(t.Context(), cluster(), annex.Options{Storage: storage, DataDir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal(instance.Run(t.Context(), func() { fmt.Println("ready") }))
}

func (v *victim) make(t *testing.T, namespace, name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	t.Helper()
	w := widget(name, nil)
	w.SetOwnerReferences(owners)
	made, err := v.all.Resource(widgetsResource).Namespace(namespace).Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return metav1.OwnerReference{
		APIVersion:         made.GetAPIVersion(),
		Kind:               made.GetKind(),
		Name:               name,
		UID:                made.GetUID(),
		BlockOwnerDeletion: new(true),
	}
}

// Cascading deletions of every policy and the deletion of a namespace are in progress when the server is killed,
// ANNEX_CRASH_KILLS times. The next server finishes them.
func TestDeletion_afterKills(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(victimEnv); dir != "" {
		serveUntilKilled(t, dir, embedded.Dir(""))
	}
	dir, random := t.TempDir(), storetest.Seeded(t)
	v := startVictim(t, dir)
	v.define(t, widgets(sizeAndColor))
	kills := storetest.Trials(t, "ANNEX_CRASH_KILLS", 3)
	for round := range kills {
		v.plant(t, round)
		events, err := v.all.Resource(widgetsResource).Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v.delete(t, round)
		for left := random.IntN(300); left > 0; {
			event, open := <-events.ResultChan()
			if !open {
				t.Fatal("the watch ended")
			}
			if event.Type == watch.Deleted || event.Type == watch.Modified {
				left--
			}
		}
		v.kill(t)
		events.Stop()
		v = startVictim(t, dir)
		testwait.NoError(t, "the deletions are finished", func(ctx context.Context) error { return v.finished(ctx, round) })
	}
	v.kill(t)
	fmt.Printf("crash (cascades and namespaces): %d kills, 0 orphans, 0 objects lost that had an owner\n", kills)
}

// plant creates trees of owners, and a namespace with content.
func (v *victim) plant(t *testing.T, round int) {
	t.Helper()
	named := func(name string, n ...any) string { return fmt.Sprint("r", round, "-", name, fmt.Sprint(n...)) }
	for _, policy := range []string{"background", "foreground"} {
		root := v.make(t, "default", named(policy))
		keeper := v.make(t, "default", named(policy+"-keeper"))
		for i := range 10 {
			middle := v.make(t, "default", named(policy, i), root)
			for j := range 10 {
				v.make(t, "default", named(policy, i, "-", j), middle)
			}
			v.make(t, "default", named(policy+"-kept", i), middle, keeper)
		}
	}
	orphans := v.make(t, "default", named("orphan"))
	for i := range 50 {
		v.make(t, "default", named("orphan", i), orphans)
	}
	ns := widget(named("namespace"), nil)
	ns.SetAPIVersion("v1")
	ns.SetKind("Namespace")
	delete(ns.Object, "spec")
	if _, err := v.all.Resource(namespacesResource).Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		v.make(t, named("namespace"), fmt.Sprint("w", i))
	}
}

func (v *victim) delete(t *testing.T, round int) {
	t.Helper()
	for name, policy := range map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground,
		"foreground": metav1.DeletePropagationForeground,
		"orphan":     metav1.DeletePropagationOrphan,
	} {
		if err := v.widgets.Delete(
			t.Context(),
			fmt.Sprint("r", round, "-", name),
			metav1.DeleteOptions{PropagationPolicy: &policy},
		); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.all.Resource(namespacesResource).
		Delete(t.Context(), fmt.Sprint("r", round, "-namespace"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// finished returns nil if exactly the expected objects of a round remain, in the expected state.
func (v *victim) finished(ctx context.Context, round int) error {
	if _, err := v.all.Resource(namespacesResource).
		Get(ctx, fmt.Sprint("r", round, "-namespace"), metav1.GetOptions{}); !apierrors.IsNotFound(
		err,
	) {
		return fmt.Errorf("the namespace: %v", err)
	}
	list, err := v.all.Resource(widgetsResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	left := map[string]int{}
	for _, w := range list.Items {
		name, mine := strings.CutPrefix(w.GetName(), fmt.Sprint("r", round, "-"))
		if w.GetNamespace() != "default" {
			return fmt.Errorf("%s is left in a namespace that is gone", w.GetName())
		}
		if !mine {
			continue
		}
		if len(w.GetOwnerReferences()) > 1 || w.GetDeletionTimestamp() != nil ||
			slices.Contains(w.GetFinalizers(), metav1.FinalizerDeleteDependents) {
			return fmt.Errorf("%s is not finished: %v", name, w.GetOwnerReferences())
		}
		left[strings.TrimRight(name, "0123456789")]++
	}
	want := map[string]int{"background-keeper": 1, "background-kept": 10, "foreground-keeper": 1, "foreground-kept": 10, "orphan": 50}
	if fmt.Sprint(left) != fmt.Sprint(want) {
		return errors.New("left are " + fmt.Sprint(left))
	}
	return nil
}
