package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// besideStorages opens two resources of a backend: dependents, and the objects that they depend on.
func besideStorages(t *testing.T, backend store.Backend) (dependents store.DependentWriter, others storage.Interface) {
	t.Helper()
	resource := storetest.Pods("/others")
	resource.Resource = schema.GroupResource{Resource: "others"}
	others, err := backend.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage of the others is ready", func(context.Context) error { return others.ReadinessCheck() })
	return store.DependentOf(openPods(t, backend)), others
}

// seeAt waits until the cache has a revision.
func seeAt(t *testing.T, others storage.Interface, revision string) store.Seen {
	t.Helper()
	var seen store.Seen
	testwait.NoError(t, "the cache has revision "+revision, func(ctx context.Context) (err error) {
		pod := &example.Pod{}
		seen, err = store.DependentOf(others).See(ctx, "/others/ns/other", pod)
		if err == nil && pod.ResourceVersion != revision {
			err = fmt.Errorf("it has %s", pod.ResourceVersion)
		}
		return err
	})
	return seen
}

func TestCreateBeside(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			members := startCluster(t, 1, nil)
			backend := open(t, members, change)
			pods, others := besideStorages(t, backend)
			ctx := t.Context()
			beside := func(name string, seen store.Seen) (*example.Pod, error) {
				created := &example.Pod{}
				pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
				return created, pods.CreateBeside(ctx, key(name), pod, created, seen)
			}
			refused := func(name string, seen store.Seen) {
				t.Helper()
				if _, err := beside(name, seen); !errors.Is(err, store.ErrConcurrentWrite) {
					t.Errorf("create %s: %v", name, err)
				}
				if err := pods.Get(ctx, key(name), storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
					t.Errorf("%s was written: %v", name, err)
				}
			}

			other := &example.Pod{}
			if err := others.Create(ctx, "/others/ns/other", &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}, other, 0); err != nil {
				t.Fatal(err)
			}
			seen := seeAt(t, others, other.ResourceVersion)
			created, err := beside("one", seen)
			if err != nil || created.Name != "one" || created.ResourceVersion <= other.ResourceVersion {
				t.Fatalf("create beside an unchanged object: %v, %v", created, err)
			}
			read := &example.Pod{}
			if err := pods.Get(ctx, key("one"), storage.GetOptions{}, read); err != nil || read.ResourceVersion != created.ResourceVersion {
				t.Errorf("read %v, %v; created %v", read, err, created)
			}
			if revision := backend.Revision(); fmt.Sprint(revision) != created.ResourceVersion {
				t.Errorf("the backend is at revision %d, the object at %s", revision, created.ResourceVersion)
			}
			if _, err := beside("one", seen); !storage.IsExist(err) {
				t.Errorf("create again: %v", err)
			}
			if err := pods.CreateBeside(ctx, key("old"), created, &example.Pod{}, seen); !errors.Is(err, storage.ErrResourceVersionSetOnCreate) {
				t.Errorf("create with a resource version: %v", err)
			}
			refused("unseen", store.Seen{Backend: backend, Key: seen.Key})
			refused("elsewhere", store.Seen{Backend: open(t, members, change), Key: seen.Key, Revision: seen.Revision})

			if err := others.GuaranteedUpdate(ctx, "/others/ns/other", other, false, nil,
				storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
					object.(*example.Pod).Labels = map[string]string{"changed": "yes"}
					return object, nil
				}), nil); err != nil {
				t.Fatal(err)
			}
			refused("changed", seen)
			seen = seeAt(t, others, other.ResourceVersion)
			if _, err := beside("two", seen); err != nil {
				t.Errorf("create beside a changed object that was seen again: %v", err)
			}
			if err := others.Delete(ctx, "/others/ns/other", other, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			refused("gone", seen)
			if _, err := beside("two", seen); !errors.Is(err, store.ErrConcurrentWrite) {
				t.Errorf("create an existing object beside a missing one: %v", err)
			}
		})
	}
}

// Two replicas delete a namespace and create objects in it. No object remains in the removed namespace.
func TestReplicas_deletedNamespace_keepsNoObject(t *testing.T) {
	members := startCluster(t, 1, nil)
	start := func() *rest.Config {
		return annextest.StartWith(t, shop(), annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})})
	}
	one, other := start(), start()
	ctx := t.Context()
	namespaces := kubernetes.NewForConfigOrDie(one).CoreV1().Namespaces()
	for round := range 5 {
		name := fmt.Sprint("lab-", round)
		if _, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		creating := dynamic.NewForConfigOrDie(other).Resource(widgets).Namespace(name)
		begun, refused := make(chan struct{}), make(chan error)
		go func() {
			for i := 0; ; i++ {
				if _, err := creating.Create(ctx, newWidget(fmt.Sprint("w", i)), metav1.CreateOptions{}); err != nil {
					if i <= 10 {
						close(begun)
					}
					refused <- err
					return
				}
				if i == 10 {
					close(begun)
				}
			}
		}()
		<-begun
		if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.IsNotFound(err) {
			t.Errorf("create in a namespace that is being deleted: %v", err)
		}
		testwait.NoError(t, "the namespace is removed", func(ctx context.Context) error {
			_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("get: %w", errors.Join(err, errors.New("it is there")))
		})
		left, err := dynamic.NewForConfigOrDie(one).Resource(widgets).Namespace(name).List(ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			t.Errorf("in the removed namespace: %v, %v", left.Items, err)
		}
	}
}
