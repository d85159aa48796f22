package etcdtest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/etcd"
)

// One of the replicas of a control plane over one etcd runs the controllers; when it ends, another takes over.
func TestControlPlane_oneReplicaRunsControllers(t *testing.T) {
	members, ctx := startCluster(t, 1, nil), t.Context()
	type replica struct {
		client *kubernetes.Clientset
		stop   func() error
	}
	var (
		replicas [2]replica
		turn     = make(chan struct{}, 1) // held by the replica that runs controllers
		began    = make(chan int, len(replicas))
	)
	for i := range replicas {
		server := annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{}), Controllers: []annex.Controller{{
			Name: "turn",
			Run: func(ctx context.Context, _ *annex.Env) error {
				select {
				case turn <- struct{}{}:
				default:
					t.Error("two replicas run their controllers at the same time")
				}
				began <- i
				<-ctx.Done()
				<-turn
				return nil
			},
		}}}
		config, ready, stop := runServer(
			t,
			server,
			annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}), DataDir: t.TempDir()},
		)
		<-ready
		replicas[i] = replica{kubernetes.NewForConfigOrDie(config), stop}
	}
	collects := func(client *kubernetes.Clientset, name string) {
		t.Helper()
		configMaps := client.CoreV1().ConfigMaps("default")
		owner, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + "-owned", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID},
		}}}
		if _, err := configMaps.Create(ctx, owned, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := configMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "what is owned goes", func(ctx context.Context) error {
			if _, err := configMaps.Get(ctx, owned.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}
	leader := <-began
	follower := 1 - leader
	collects(replicas[follower].client, "before")
	leases := replicas[follower].client.CoordinationV1().Leases(metav1.NamespaceSystem)
	held := func() *coordinationv1.Lease {
		t.Helper()
		lease, err := leases.Get(ctx, "cluster-controllers", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	before := held()
	if err := replicas[leader].stop(); err != nil {
		t.Fatal(err)
	}
	if next := <-began; next != follower {
		t.Errorf("replica %d runs the controllers, and has ended", next)
	}
	collects(replicas[follower].client, "after")
	if after := held(); *after.Spec.HolderIdentity == *before.Spec.HolderIdentity ||
		*after.Spec.LeaseTransitions != *before.Spec.LeaseTransitions+1 {
		t.Errorf("the Lease was %+v and is %+v", before.Spec, after.Spec)
	}
}

// The watch cache has an index of each selectable field of custom resources, and finds the watches of an event by the
// first field.
func TestCustomResources_selectableFields(t *testing.T) {
	members, ctx := startCluster(t, 1, nil), t.Context()
	server := annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{})}
	config, ready, _ := runServer(
		t,
		server,
		annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}), DataDir: t.TempDir()},
	)
	<-ready
	all := dynamic.NewForConfigOrDie(config)
	widgets := all.Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	definition := &unstructured.Unstructured{}
	if err := definition.UnmarshalJSON(
		[]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.stable.example.com"},
		"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,
		"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.size"}],"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","properties":{"color":{"type":"string"},"size":{"type":"integer"}}}}}}}]}}`),
	); err != nil {
		t.Fatal(err)
	}
	definitions := all.Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	)
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the definition is served", func(ctx context.Context) error {
		_, err := widgets.List(ctx, metav1.ListOptions{})
		return err
	})
	watches := map[string]watch.Interface{}
	for _, selector := range []string{"spec.color=blue", "spec.size=2"} {
		w, err := widgets.Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches[selector] = w
	}
	for i := range 12 {
		spec := map[string]any{"color": []string{"red", "green", "blue"}[i%3], "size": int64(i % 4)}
		if i == 11 {
			spec = map[string]any{"size": int64(i % 4)}
		}
		w := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "stable.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": fmt.Sprintf("w%02d", i)}, "spec": spec,
		}}
		if _, err := widgets.Create(ctx, w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := widgets.Patch(
		ctx,
		"w02",
		types.MergePatchType,
		[]byte(`{"spec":{"color":"red","size":1}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	for selector, want := range map[string][]string{
		"spec.color=blue": {"w05", "w08"}, "spec.color=": {"w11"}, "spec.color=none": nil, "spec.size=2": {"w06", "w10"},
		"spec.color=red,spec.size=1": {"w02", "w09"}, "spec.color!=blue,spec.size=0": {"w00", "w04"},
	} {
		for _, version := range []string{"", "0"} {
			testwait.NoError(t, selector, func(ctx context.Context) error {
				list, err := widgets.List(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: version})
				if err != nil {
					return err
				}
				var got []string
				for _, w := range list.Items {
					got = append(got, w.GetName())
				}
				if !slices.Equal(got, want) {
					return fmt.Errorf("%q instead of %q", got, want)
				}
				return nil
			})
		}
	}
	for selector, want := range map[string][]string{
		"spec.color=blue": {"ADDED w02", "ADDED w05", "ADDED w08", "DELETED w02"},
		"spec.size=2":     {"ADDED w02", "ADDED w06", "ADDED w10", "DELETED w02"},
	} {
		for _, want := range want {
			select {
			case event := <-watches[selector].ResultChan():
				w, ok := event.Object.(*unstructured.Unstructured)
				if !ok || fmt.Sprint(event.Type, " ", w.GetName()) != want {
					t.Fatalf("a watch of %s gets %v instead of %s", selector, event, want)
				}
			case <-time.After(patience):
				t.Fatalf("a watch of %s does not get %s", selector, want)
			}
		}
	}
}
