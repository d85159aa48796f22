package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// deletion is the outcome of a deletion.
type deletion struct {
	Result    runtime.Object
	Type      string
	Deleted   bool
	Err       *metav1.Status
	Options   *metav1.DeleteOptions // after the call
	Validated []string              // validated objects, without repetitions of a retried step
	Stored    runtime.Object
}

var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:]+Z`)

// comparable returns the deletion without times, and with the UID of the object replaced.
func (d deletion) comparable(t *testing.T, uid types.UID) string {
	d.Validated, d.Type = slices.Compact(d.Validated), fmt.Sprintf("%T", d.Result)
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return times.ReplaceAllString(strings.ReplaceAll(string(text), string(uid), "UID"), "TIME")
}

// TestDelete_matchesGenericRegistry makes the same deletions through a main endpoint and through genericregistry.Store.
func TestDelete_matchesGenericRegistry(t *testing.T) {
	if testing.Short() {
		t.Skip("compares all deletions with upstream")
	}
	for name, test := range map[string]struct {
		kind    func() *define.Kind
		garbage bool
	}{
		"plain":            {func() *define.Kind { return &define.Kind{} }, false},
		"garbage":          {func() *define.Kind { return &define.Kind{} }, true},
		"returned":         {func() *define.Kind { return &define.Kind{ReturnsDeleted: true} }, true},
		"graceful":         {func() *define.Kind { return &define.Kind{Grace: &define.Grace{Period: time.Hour}} }, true},
		"without metadata": {func() *define.Kind { return &define.Kind{WithoutGeneration: true} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(1, uint64(len(name))))
			kinds := [2]*Kind{newKind(t, test.kind()), newKind(t, test.kind())}
			deleters := [2]rest.GracefulDeleter{kinds[0].store, kinds[1].main().(rest.GracefulDeleter)}
			for _, k := range kinds {
				k.store.EnableGarbageCollection = test.garbage
			}
			ctx := request.WithNamespace(t.Context(), "default")
			if dice.IntN(2) == 0 {
				ctx = request.WithRequestInfo(ctx, &request.RequestInfo{APIGroup: "another.example.com", Resource: "things"})
			}
			outcomes := map[string]int{}
			for i := range 1500 {
				w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: oneOf(dice, "a", "b", "c")}}
				w.Finalizers = oneOf(
					dice,
					nil,
					nil,
					nil,
					[]string{"example.com/hold"},
					[]string{metav1.FinalizerOrphanDependents},
					[]string{metav1.FinalizerDeleteDependents, "example.com/hold"},
				)
				name, refused := oneOf(dice, w.Name, w.Name, w.Name, "missing", "Not/A/Name"), dice.IntN(8) == 0
				options := randomDeletion(dice)
				var got [2]string
				var last deletion
				for side, k := range kinds {
					if _, err := k.store.Create(
						ctx,
						w.DeepCopy(),
						rest.ValidateAllObjectFunc,
						&metav1.CreateOptions{},
					); err != nil &&
						!apierrors.IsAlreadyExists(err) {
						t.Fatal(err)
					}
					there, err := k.store.Get(ctx, w.Name, &metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					d := deletion{Options: options.DeepCopy()}
					if d.Options != nil && d.Options.Preconditions != nil && d.Options.Preconditions.UID != nil && *d.Options.Preconditions.UID == "its" {
						d.Options.Preconditions.UID = &there.(*v1.Widget).UID
					}
					valid := func(_ context.Context, obj runtime.Object) error {
						m := obj.(*v1.Widget)
						d.Validated = append(d.Validated, fmt.Sprint(m.Name, " ", m.UID, " ", m.ResourceVersion))
						if refused {
							return apierrors.NewForbidden(k.Definition.GroupResource(), m.Name, errors.New("it is refused"))
						}
						return nil
					}
					d.Result, d.Deleted, err = deleters[side].Delete(ctx, name, valid, d.Options)
					if err != nil {
						status := apierrors.APIStatus(nil)
						if !errors.As(err, &status) {
							t.Fatalf("%d: an error without a status: %v", i, err)
						}
						d.Err = new(metav1.Status)
						*d.Err = status.Status()
					}
					if d.Stored, err = k.store.Get(ctx, w.Name, &metav1.GetOptions{}); apierrors.IsNotFound(err) {
						d.Stored = nil
					}
					got[side], last = d.comparable(t, there.(*v1.Widget).UID), d
				}
				if got[0] != got[1] {
					t.Fatalf(
						"%d: delete %s, finalizers %q, %+v, refused %t: upstream's\n%s\nours\n%s",
						i,
						name,
						w.Finalizers,
						options,
						refused,
						got[0],
						got[1],
					)
				}
				outcomes[fmt.Sprintf("%T deleted %t failed %t", last.Result, last.Deleted, last.Err != nil)]++
				if dice.IntN(3) > 0 { // otherwise the next deletion finds the remaining objects
					for _, k := range kinds {
						empty(ctx, t, k)
					}
				}
			}
			t.Log(outcomes)
			if len(outcomes) < 3 {
				t.Errorf("the deletions are too much alike: %v", outcomes)
			}
		})
	}
}

func oneOf[T any](dice *rand.Rand, of ...T) T { return of[dice.IntN(len(of))] }

func randomDeletion(dice *rand.Rand) *metav1.DeleteOptions {
	if dice.IntN(10) == 0 {
		return nil
	}
	options := &metav1.DeleteOptions{}
	for range dice.IntN(3) {
		switch dice.IntN(6) {
		case 0, 1:
			policy := oneOf(dice, metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan, "Other")
			options.PropagationPolicy = &policy
		case 2:
			seconds := oneOf[int64](dice, -1, 0, 1, 30)
			options.GracePeriodSeconds = &seconds
		case 3:
			orphan := dice.IntN(2) == 0
			//lint:ignore SA1019 clients of long ago still say so
			options.OrphanDependents = &orphan
		case 4:
			options.DryRun = oneOf(dice, []string{metav1.DryRunAll}, []string{"Some"})
		case 5:
			of, revision := types.UID(oneOf(dice, "its", "other")), oneOf(dice, "1", "7")
			options.Preconditions = oneOf(
				dice,
				&metav1.Preconditions{},
				&metav1.Preconditions{UID: &of},
				&metav1.Preconditions{ResourceVersion: &revision},
			)
		}
	}
	return options
}

// empty removes all objects of a kind, including objects with finalizers.
func empty(ctx context.Context, t *testing.T, k *Kind) {
	t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		release(ctx, t, k, name, nil)
		now := int64(0)
		if _, _, err := k.store.Delete(
			ctx,
			name,
			rest.ValidateAllObjectFunc,
			&metav1.DeleteOptions{GracePeriodSeconds: &now},
		); err != nil &&
			!apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// release sets an object's finalizers, if the object exists.
func release(ctx context.Context, t *testing.T, k *Kind, name string, finalizers []string) {
	t.Helper()
	change := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		w := old.DeepCopyObject().(*v1.Widget)
		w.Finalizers = finalizers
		return w, nil
	})
	if _, _, err := k.store.Update(
		ctx,
		name,
		change,
		rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc,
		false,
		&metav1.UpdateOptions{},
	); err != nil &&
		!apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

func TestDelete_concurrentFinalizer_isKept(t *testing.T) {
	k, ctx := newKind(t, &define.Kind{}), request.WithNamespace(t.Context(), "default")
	w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: "w", UID: "u"}}
	if _, err := k.store.Create(ctx, w, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	validated := 0
	valid := func(ctx context.Context, _ runtime.Object) error {
		if validated++; validated == 1 {
			release(ctx, t, k, "w", []string{"example.com/hold"})
		}
		return nil
	}
	result, deleted, err := k.main().(rest.GracefulDeleter).Delete(ctx, "w", valid, &metav1.DeleteOptions{})
	if err != nil || deleted {
		t.Fatalf("got %v, deleted %t, %v", result, deleted, err)
	}
	stored, err := k.store.Get(ctx, "w", &metav1.GetOptions{})
	if err != nil || stored.(*v1.Widget).DeletionTimestamp == nil {
		t.Errorf("stored is %v, %v", stored, err)
	}
}
