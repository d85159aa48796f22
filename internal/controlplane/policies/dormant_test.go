package policies

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/testing/testlog"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }

// counting is a plugin of either type that counts its calls.
type counting struct {
	*admission.Handler
	asked int
}

func (c *counting) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.asked++
	return nil
}

type countingValidation struct {
	*admission.Handler
	asked int
}

func (c *countingValidation) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.asked++
	return nil
}

// source is a list of objects that blocks until open is closed.
func source(
	open <-chan struct{},
	changes *watch.FakeWatcher,
	objects ...admissionregistrationv1.ValidatingAdmissionPolicy,
) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			select {
			case <-open:
			case <-ctx.Done():
			}
			return &admissionregistrationv1.ValidatingAdmissionPolicyList{
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items:    objects,
			}, ctx.Err()
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return changes, nil },
	}, noWatchList{})
}

type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

func policyNamed(name string) admissionregistrationv1.ValidatingAdmissionPolicy {
	return admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func write() admission.Attributes {
	return admission.NewAttributesRecord(
		nil,
		nil,
		schema.GroupVersionKind{Kind: "Kind"},
		"ns",
		"name",
		schema.GroupVersionResource{Resource: "kinds"},
		"",
		admission.Create,
		nil,
		false,
		nil,
	)
}

func TestDormant_callsOnlyWithObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		open, changes := make(chan struct{}), watch.NewFake()
		objects := cache.NewSharedIndexInformer(source(open, changes), &admissionregistrationv1.ValidatingAdmissionPolicy{}, 0, nil)
		go objects.RunWithContext(ctx)
		close(open)

		mutates, validates := &counting{
			Handler: admission.NewHandler(admission.Create),
		}, &countingValidation{
			Handler: admission.NewHandler(admission.Create),
		}
		d := dormancy{objects: objects, stopped: ctx.Done()}
		ask := func() {
			t.Helper()
			synctest.Wait()
			if err := d.dormant(mutates).(admission.MutationInterface).Admit(ctx, write(), nil); err != nil {
				t.Error(err)
			}
			if err := d.dormant(validates).(admission.ValidationInterface).Validate(ctx, write(), nil); err != nil {
				t.Error(err)
			}
		}
		asked := func(want int) {
			t.Helper()
			if mutates.asked != want || validates.asked != want {
				t.Errorf("asked %d and %d times, not %d", mutates.asked, validates.asked, want)
			}
		}
		ask()
		asked(0)
		policy := policyNamed("p")
		changes.Add(&policy)
		ask()
		asked(1)
		changes.Delete(&policy)
		ask()
		asked(1)
		if d.dormant(mutates).Handles(admission.Update) || !d.dormant(mutates).Handles(admission.Create) {
			t.Error("the plugin handles other operations than before")
		}
		if _, both := d.dormant(mutates).(admission.ValidationInterface); both {
			t.Error("a plugin that mutates has become one that validates, too")
		}
	})
}

func TestDormant_waitsForInitialList(t *testing.T) {
	for name, c := range map[string]struct {
		opens     bool
		asked     int
		forbidden bool
	}{
		"read at last": {opens: true, asked: 1},
		"never read":   {forbidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				open := make(chan struct{})
				objects := cache.NewSharedIndexInformer(
					source(open, watch.NewFake(), policyNamed("p")),
					&admissionregistrationv1.ValidatingAdmissionPolicy{},
					0,
					nil,
				)
				go objects.RunWithContext(ctx)
				plugin := &countingValidation{Handler: admission.NewHandler(admission.Create)}
				answer := make(chan error, 1)
				go func() {
					answer <- dormancy{objects, ctx.Done()}.dormant(plugin).(admission.ValidationInterface).Validate(ctx, write(), nil)
				}()
				synctest.Wait()
				select {
				case err := <-answer:
					t.Fatalf("answered before the policies were read: %v", err)
				default:
				}
				if c.opens {
					close(open)
				}
				if err := <-answer; apierrors.IsForbidden(err) != c.forbidden || plugin.asked != c.asked {
					t.Errorf("answered %v, asked %d times", err, plugin.asked)
				}
			})
		})
	}
}
