package registry

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/objects"
)

// NeedsGraceTimer reports whether the kind needs RunGraceTimer.
func (k *Kind) NeedsGraceTimer() bool {
	return k.Definition.AliasOf == nil && k.Definition.Grace != nil && k.Definition.Grace.DeleteAfterPeriod
}

// RunGraceTimer deletes the kind's objects when their grace period is over, until the context ends. Its state is in the
// objects themselves, so it continues after a restart.
func (k *Kind) RunGraceTimer(ctx context.Context, c clock.WithTicker) {
	t := &graceTimer{kind: k, clock: c, due: workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.next(ctx) {
		}
	}()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := t.observe(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to watch for the end of grace periods", "resource", k.Definition.GroupResource())
		}
	}, time.Second)
	t.due.ShutDown()
	<-done
}

type graceTimer struct {
	kind  *Kind
	clock clock.WithTicker
	due   workqueue.TypedDelayingInterface[types.NamespacedName]
}

// observe schedules every object that is being deleted, until its watch ends.
func (t *graceTimer) observe(ctx context.Context) error {
	w, err := t.kind.store.Watch(request.WithNamespace(ctx, metav1.NamespaceAll), &metainternalversion.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			switch event.Type {
			case watch.Error:
				return apierrors.FromObject(event.Object)
			case watch.Added, watch.Modified:
				m := objects.Meta(event.Object)
				t.schedule(types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, m)
			}
		}
	}
}

// schedule adds the object to the queue if it is being deleted gracefully.
func (t *graceTimer) schedule(key types.NamespacedName, m metav1.Object) {
	if pending(m) {
		t.due.AddAfter(key, m.GetDeletionTimestamp().Sub(t.clock.Now()))
	}
}

// pending reports whether the object waits for the end of its grace period, which is its deletion timestamp.
func pending(m metav1.Object) bool {
	seconds := m.GetDeletionGracePeriodSeconds()
	return m.GetDeletionTimestamp() != nil && seconds != nil && *seconds > 0
}

func (t *graceTimer) next(ctx context.Context) bool {
	key, shutdown := t.due.Get()
	if shutdown {
		return false
	}
	defer t.due.Done(key)
	if err := t.finish(ctx, key); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).
			Error(err, "Failed to delete an object after its grace period", "resource", t.kind.Definition.GroupResource(), "object", key)
		t.due.AddAfter(key, time.Second)
	}
	return true
}

// finish deletes the object if its grace period has expired, and schedules it again otherwise. It is idempotent.
func (t *graceTimer) finish(ctx context.Context, key types.NamespacedName) error {
	ctx = request.WithNamespace(ctx, key.Namespace)
	obj, err := t.kind.store.Get(ctx, key.Name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m := objects.Meta(obj)
	if !pending(m) {
		return nil
	}
	if m.GetDeletionTimestamp().After(t.clock.Now()) {
		t.schedule(key, m)
		return nil
	}
	// The UID suffices as a precondition, because a deletion that has started can be neither cancelled nor delayed.
	uid, now := m.GetUID(), int64(0)
	_, _, err = t.kind.store.Delete(ctx, key.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
