package registry

import (
	"context"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/mvcc"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

// newKind opens a kind on a storage in memory.
func newKind(t *testing.T, k *define.Kind) *Kind {
	t.Helper()
	k.Resource = "widgets"
	k.Versions = append([]*define.Version{{
		Facts: v1.API, Type: reflect.TypeFor[v1.Widget](), ListType: reflect.TypeFor[v1.WidgetList](),
	}}, k.Versions...)
	server := &define.Server{Name: "shop", Groups: []define.Group{{Name: "shop.example.com", Kinds: []*define.Kind{k}}}}
	if err := define.Check(server); err != nil {
		t.Fatal(err)
	}
	machinery, err := convert.New(server)
	if err != nil {
		t.Fatal(err)
	}
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kind, err := NewKind(
		k,
		Options{
			Typer:       machinery.Scheme,
			RESTOptions: NewStores(func(schema.GroupResource) store.Backend { return core }, machinery, server, nil),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kind.store.Destroy()
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	return kind
}

// timed is a kind with a running grace timer.
type timed struct {
	*testing.T
	*Kind
	ctx   context.Context
	clock *clocktesting.FakeClock
}

func newTimed(t *testing.T) *timed {
	ctx, cancel := context.WithTimeout(request.WithNamespace(t.Context(), "default"), 30*time.Second)
	t.Cleanup(cancel)
	return &timed{
		T:    t,
		Kind: newKind(t, &define.Kind{Grace: &define.Grace{Period: time.Hour, DeleteAfterPeriod: true}}),
		ctx:  ctx,
		// Deletion timestamps come from the real clock.
		clock: clocktesting.NewFakeClock(time.Now()),
	}
}

func (k *timed) run() (stop func()) {
	ctx, cancel := context.WithCancel(k.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.RunGraceTimer(ctx, k.clock)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (k *timed) create(name string, finalizers ...string) {
	k.Helper()
	w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
	rest.FillObjectMetaSystemFields(w)
	if _, err := k.store.Create(k.ctx, w, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		k.Fatal(err)
	}
}

func (k *timed) delete(name string, seconds int64) {
	k.Helper()
	if _, _, err := k.store.Delete(k.ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{GracePeriodSeconds: &seconds}); err != nil {
		k.Fatal(err)
	}
}

func (k *timed) exists(name string) bool {
	k.Helper()
	_, err := k.store.Get(k.ctx, name, &metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		k.Fatal(err)
	}
	return err == nil
}

// watch returns a function that expects the next event from now on.
func (k *timed) watch() func(watch.EventType, string) *v1.Widget {
	k.Helper()
	none := false
	w, err := k.store.Watch(
		k.ctx,
		&metainternalversion.ListOptions{SendInitialEvents: &none, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
	)
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(w.Stop)
	return func(kind watch.EventType, name string) *v1.Widget {
		k.Helper()
		select {
		case e := <-w.ResultChan():
			// Events share their encoding among watchers.
			if shared, ok := e.Object.(runtime.CacheableObject); ok {
				e.Object = shared.GetObject()
			}
			obj, ok := e.Object.(*v1.Widget)
			if !ok || e.Type != kind || obj.Name != name {
				k.Fatalf("got %s %v, want %s %s", e.Type, e.Object, kind, name)
			}
			return obj
		case <-k.ctx.Done():
			k.Fatalf("%s %s did not happen", kind, name)
			return nil
		}
	}
}

func TestGraceTimer_due_isDeleted(t *testing.T) {
	k := newTimed(t)
	defer k.run()()
	k.create("soon")
	k.create("later")
	k.create("alive")
	k.delete("soon", 60)
	k.delete("later", 600)
	happens := k.watch()
	k.clock.Step(2 * time.Minute)
	happens(watch.Modified, "soon")
	happens(watch.Deleted, "soon")
	if !k.exists("later") || !k.exists("alive") {
		t.Error("what is not due was deleted")
	}
	k.clock.Step(time.Hour)
	happens(watch.Modified, "later")
	happens(watch.Deleted, "later")
	if !k.exists("alive") {
		t.Error("what no client deletes was deleted")
	}
}

func TestGraceTimer_shorterPeriod(t *testing.T) {
	k := newTimed(t)
	defer k.run()()
	k.create("w")
	k.delete("w", 3600)
	happens := k.watch()
	k.delete("w", 60)
	happens(watch.Modified, "w")
	k.clock.Step(2 * time.Minute)
	happens(watch.Modified, "w")
	happens(watch.Deleted, "w")
}

func TestGraceTimer_finalizers(t *testing.T) {
	k := newTimed(t)
	defer k.run()()
	k.create("w", "shop.example.com/wait")
	k.create("other")
	k.delete("w", 60)
	happens := k.watch()
	k.clock.Step(2 * time.Minute)
	if w := happens(watch.Modified, "w"); *w.DeletionGracePeriodSeconds != 0 {
		t.Errorf("at its end: %+v", w.ObjectMeta)
	}
	// The timer is done with it: another object passes undisturbed.
	k.delete("other", 60)
	happens(watch.Modified, "other")
	k.clock.Step(2 * time.Minute)
	happens(watch.Modified, "other")
	happens(watch.Deleted, "other")
	if !k.exists("w") {
		t.Error("the finalizer was ignored")
	}
}

func TestGraceTimer_restart(t *testing.T) {
	k := newTimed(t)
	stop := k.run()
	k.create("due")
	k.create("w")
	k.delete("due", 60)
	k.delete("w", 3600)
	stop()
	happens := k.watch()
	k.clock.Step(10 * time.Minute)
	defer k.run()()
	happens(watch.Modified, "due")
	happens(watch.Deleted, "due")
	if !k.exists("w") {
		t.Error("what is not due was deleted")
	}
	k.clock.Step(time.Hour)
	happens(watch.Modified, "w")
	happens(watch.Deleted, "w")
}

func TestGraceTimer_recreatedObject_isKept(t *testing.T) {
	k := newTimed(t)
	defer k.run()()
	k.create("w")
	k.create("other")
	k.delete("w", 60)
	k.delete("w", 0)
	k.create("w")
	k.delete("other", 60)
	happens := k.watch()
	k.clock.Step(2 * time.Minute)
	happens(watch.Modified, "other")
	happens(watch.Deleted, "other")
	if !k.exists("w") {
		t.Error("the new object went with the old one's timer")
	}
}
