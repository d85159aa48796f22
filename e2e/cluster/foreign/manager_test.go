package foreign

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const finalizer = "managers.example.com/tidy"

var shelf = schema.GroupVersionKind{Group: "managers.example.com", Version: "v1", Kind: "Shelf"}

// keeper creates a config map for each shelf, reports it in the shelf's status and in an event, and delays deletion.
type keeper struct {
	client.Client
	events events.EventRecorder
	tidied chan string
}

func (k *keeper) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := newShelf()
	if err := k.Get(ctx, request.NamespacedName, s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if s.GetDeletionTimestamp() != nil {
		if controllerutil.RemoveFinalizer(s, finalizer) {
			k.tidied <- s.GetName()
			return ctrl.Result{}, k.Update(ctx, s)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(s, finalizer) {
		if err := k.Update(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	contents := &corev1.ConfigMap{}
	contents.Name, contents.Namespace = s.GetName(), s.GetNamespace()
	done, err := controllerutil.CreateOrUpdate(ctx, k.Client, contents, func() error {
		size, _, err := unstructured.NestedInt64(s.Object, "spec", "size")
		contents.Data = map[string]string{"size": fmt.Sprint(size)}
		return errors.Join(err, controllerutil.SetControllerReference(s, contents, k.Scheme()))
	})
	if err != nil || done == controllerutil.OperationResultNone {
		return ctrl.Result{}, err
	}
	k.events.Eventf(s, contents, corev1.EventTypeNormal, "Filled", "Fill", "the contents are %s", done)
	if err := unstructured.SetNestedField(s.Object, contents.Data["size"], "status", "filled"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, k.Status().Update(ctx, s)
}

func newShelf() *unstructured.Unstructured {
	s := &unstructured.Unstructured{}
	s.SetGroupVersionKind(shelf)
	return s
}

// A manager of controller-runtime leads by a lease, works with a kind of its own, with owners, finalizers, status and
// events, and exports its metrics; a second one takes over when it ends.
func TestControllerRuntime_manager(t *testing.T) {
	config := alone.ServeControlPlane(t)
	connect(t, "annex", config).establish(t, []*apiextensionsv1.CustomResourceDefinition{definitionOf(shelf, "shelves")})
	ctrl.SetLogger(log.Log.WithName("manager"))

	start := func() (ctrl.Manager, *keeper, func()) {
		m, err := ctrl.NewManager(config, ctrl.Options{
			LeaderElection: true, LeaderElectionID: "keeper.example.com", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
			Metrics: metricsserver.Options{BindAddress: "127.0.0.1:0"},
		})
		if err != nil {
			t.Fatal(err)
		}
		k := &keeper{m.GetClient(), m.GetEventRecorder("keeper"), make(chan string, 100)}
		options := ctrl.NewControllerManagedBy(m).For(newShelf()).Owns(&corev1.ConfigMap{}).Named(fmt.Sprintf("keeper-%p", k))
		if err := options.Complete(k); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Start(ctx) }()
		stop := func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		return m, k, stop
	}
	first, k, stop := start()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string) *unstructured.Unstructured {
		s := newShelf()
		s.SetName(name)
		s.SetNamespace("default")
		s.Object["spec"] = object{"size": int64(3)}
		if err := c.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	filled := func(s *unstructured.Unstructured, want string) {
		t.Helper()
		await(t, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
				return err
			}
			if got, _, _ := unstructured.NestedString(s.Object, "status", "filled"); got != want {
				return fmt.Errorf("it is filled with %q", got)
			}
			return nil
		})
	}
	one := make("one")
	<-first.Elected()
	filled(one, "3")
	if err := c.Patch(t.Context(), one, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"size":5}}`))); err != nil {
		t.Fatal(err)
	}
	filled(one, "5")

	// An owned object is recreated, and is deleted with its owner.
	contents := &corev1.ConfigMap{}
	contents.Name, contents.Namespace = "one", "default"
	if err := c.Delete(t.Context(), contents); err != nil {
		t.Fatal(err)
	}
	await(t, func(ctx context.Context) error { return c.Get(ctx, client.ObjectKeyFromObject(contents), contents) })
	if err := c.Delete(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if name := <-k.tidied; name != "one" {
		t.Error(name)
	}
	for _, gone := range []client.Object{one, contents} {
		await(t, func(ctx context.Context) error {
			switch err := c.Get(ctx, client.ObjectKeyFromObject(gone), gone); {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return errors.New("it is still there")
		})
	}
	await(t, func(ctx context.Context) error {
		var all corev1.EventList
		if err := c.List(ctx, &all, client.InNamespace("default"), client.MatchingFields{"reason": "Filled"}); err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Kind == "Shelf" && e.InvolvedObject.UID == one.GetUID() {
				return nil
			}
		}
		return fmt.Errorf("%d events, none is of the shelf", len(all.Items))
	})

	second, _, stopSecond := start()
	defer stopSecond()
	select {
	case <-second.Elected():
		t.Error("two managers lead")
	default:
	}
	stop()
	<-second.Elected()
	filled(make("two"), "3")
}

// definitionOf defines a kind whose spec and status are free.
func definitionOf(kind schema.GroupVersionKind, plural string) *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{}
	d.Name = plural + "." + kind.Group
	free := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	d.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind.Kind},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: kind.Version, Served: true, Storage: true,
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": free, "status": free},
			}},
		}},
	}
	d.APIVersion, d.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	return d
}

// await waits until try returns no error.
func await(t *testing.T, try func(context.Context) error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(
		t.Context(),
		10*time.Millisecond,
		testwait.Patience,
		true,
		func(ctx context.Context) (bool, error) {
			last = try(ctx)
			return last == nil, nil
		},
	); err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}
