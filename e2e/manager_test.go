package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"example.com/wardle/apis/wardle/v1beta1"
)

// answer is the annotation in which the controller repeats the writers' sequence.
const answer = "example.com/answer"

// manager is a controller-runtime manager with a controller that answers every write of a flunder with a write of its
// own.
type manager struct {
	ctrl.Manager
	// ledger is nil if the controller only reads.
	ledger     *ledger
	reconciled atomic.Int64
	conflicts  atomic.Int64
}

func startManager(ctx context.Context, t *testing.T, config *rest.Config, l *ledger) *manager {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.API().AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	ctrl.SetLogger(logr.Discard())
	m := &manager{ledger: l}
	var err error
	if m.Manager, err = ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}}); err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(m.Manager).For(&v1beta1.Flunder{}).WithOptions(controller.Options{
		MaxConcurrentReconciles: 4,
		// A name is for metrics, which all tests of the process share.
		SkipNameValidation: new(true),
	}).Complete(m); err != nil {
		t.Fatal(err)
	}
	background(ctx, t, m.Manager.Start)
	if !m.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the manager's cache did not sync")
	}
	return m
}

// Reconcile answers a flunder.
func (m *manager) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	m.reconciled.Add(1)
	flunder := &v1beta1.Flunder{}
	if err := m.GetClient().Get(ctx, request.NamespacedName, flunder); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if m.ledger == nil || answered(flunder) {
		return ctrl.Result{}, nil
	}
	patch := client.MergeFromWithOptions(flunder.DeepCopy(), client.MergeFromWithOptimisticLock{})
	flunder.Annotations[answer] = flunder.Annotations[sequence]
	err := m.GetClient().Patch(ctx, flunder, patch)
	switch {
	case apierrors.IsConflict(err):
		m.conflicts.Add(1)
		return ctrl.Result{}, nil
	case err == nil:
		m.ledger.store(flunder)
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func answered(f *v1beta1.Flunder) bool { return f.Annotations[answer] == f.Annotations[sequence] }

// awaitIdle returns when every flunder in the manager's cache is answered.
func (m *manager) awaitIdle(ctx context.Context, t *testing.T) {
	t.Helper()
	i, err := m.GetCache().GetInformer(ctx, &v1beta1.Flunder{})
	if err != nil {
		t.Fatal(err)
	}
	err = observe(t, "awaiting answers", i).await(ctx, func([]event) bool {
		list := &v1beta1.FlunderList{}
		if err := m.GetClient().List(ctx, list); err != nil {
			return false
		}
		for i := range list.Items {
			if !answered(&list.Items[i]) {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatalf("wait for the controller to answer: %v", err)
	}
}

func (m *manager) String() string {
	return fmt.Sprintf("%d reconciliations, %d conflicts", m.reconciled.Load(), m.conflicts.Load())
}
