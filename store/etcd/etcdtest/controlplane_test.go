package etcdtest_test

import (
	"context"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testwait"
	"github.com/annexapi/annex/store/etcd"
)

// Of the replicas of a control plane over one etcd, one runs the controllers, and when it ends
// another does.
func TestOneReplicaOfAControlPlaneRunsItsControllers(t *testing.T) {
	members, ctx := startCluster(t, 1, nil), t.Context()
	type replica struct {
		client *kubernetes.Clientset
		stop   func() error
	}
	var (
		replicas [2]replica
		turn     = make(chan struct{}, 1) // is held by what runs controllers
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
		config, ready, stop := runServer(t, server, annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}), DataDir: t.TempDir()})
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
	if after := held(); *after.Spec.HolderIdentity == *before.Spec.HolderIdentity || *after.Spec.LeaseTransitions != *before.Spec.LeaseTransitions+1 {
		t.Errorf("the Lease was %+v and is %+v", before.Spec, after.Spec)
	}
}
