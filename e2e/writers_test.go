package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"
)

var (
	flundersAlpha = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}
	flundersBeta  = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"}
)

// sequence is the annotation in which a writer numbers its writes.
const sequence = "example.com/sequence"

// writer writes flunders of its own, some of them in each version, and records the server's responses in the ledger.
type writer struct {
	id      int
	client  dynamic.Interface
	ledger  *ledger
	random  *rand.Rand
	objects map[string]*unstructured.Unstructured
	n       int
}

// startWriters starts writers that write until the context ends or the server is gone. wait returns their errors;
// conflicts are no errors if there are other writers of the same objects.
func startWriters(ctx context.Context, t *testing.T, config *rest.Config, l *ledger, count int, contended bool) (wait func() error) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(config)
	var group errgroup.Group
	for range count {
		w := &writer{client: client, ledger: l}
		w.begin()
		group.Go(func() error {
			for ctx.Err() == nil {
				err := w.step()
				var status apierrors.APIStatus
				switch {
				case err == nil, contended && apierrors.IsConflict(err):
				case utilnet.IsConnectionRefused(err):
					return nil
				case errors.As(err, &status):
					return fmt.Errorf("writer %d: %w", w.id, err)
				default:
					l.notAnswered()
					w.begin()
				}
			}
			return nil
		})
	}
	return group.Wait
}

// begin turns it into a new writer, which knows no objects yet.
func (w *writer) begin() {
	w.id = w.ledger.newWriter()
	w.random = rand.New(rand.NewPCG(1, uint64(w.id)))
	w.objects = map[string]*unstructured.Unstructured{}
}

// step makes one write. Writes are not cut off by a context, so that their outcome is known.
func (w *writer) step() error {
	w.n++
	name := fmt.Sprintf("w%d-%d", w.id, w.random.IntN(5))
	obj := w.objects[name]
	version := flundersAlpha
	if w.random.IntN(2) == 0 {
		version = flundersBeta
	}
	flunders := w.client.Resource(version).Namespace("default")
	ctx := context.Background()
	switch action := w.random.IntN(10); {
	case obj == nil:
		obj = &unstructured.Unstructured{}
		obj.SetAPIVersion(version.GroupVersion().String())
		obj.SetKind("Flunder")
		obj.SetName(name)
		obj.SetAnnotations(map[string]string{sequence: fmt.Sprint(w.n)})
		return w.stored(flunders.Create(ctx, obj, metav1.CreateOptions{}))
	case action == 0:
		err := flunders.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil {
			w.ledger.delete(obj)
			delete(w.objects, name)
		}
		return err
	case action < 5:
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, sequence, w.n)
		return w.stored(flunders.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
	default:
		obj, err := flunders.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		obj.SetAnnotations(map[string]string{sequence: fmt.Sprint(w.n)})
		return w.stored(flunders.Update(ctx, obj, metav1.UpdateOptions{}))
	}
}

func (w *writer) stored(obj *unstructured.Unstructured, err error) error {
	if err != nil {
		return err
	}
	w.ledger.store(obj)
	w.objects[obj.GetName()] = obj
	return nil
}

// mark writes an object of its own and returns its version: a watch that has delivered it has delivered all earlier
// writes.
func mark(ctx context.Context, t *testing.T, config *rest.Config, l *ledger) int64 {
	t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(flundersBeta.GroupVersion().String())
	obj.SetKind("Flunder")
	obj.SetGenerateName("mark-")
	obj, err := dynamic.NewForConfigOrDie(config).Resource(flundersBeta).Namespace("default").Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.store(obj)
	return version(obj)
}
