package etcd

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/budget"
)

// lister lists the given number of pods, from memory.
type lister struct {
	storage.Interface
	pods int
}

func (l lister) GetList(_ context.Context, _ string, _ storage.ListOptions, list runtime.Object) error {
	list.(*example.PodList).Items = make([]example.Pod, l.pods)
	return nil
}

// anyBytes decodes everything into an empty pod.
type anyBytes struct{ runtime.Codec }

func (anyBytes) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return &example.Pod{}, nil, nil
}

func TestGetList_holdsMemoryForResponse(t *testing.T) {
	decoded := &sizes{}
	codec := guardedCodec{anyBytes{}, decoded}
	for _, size := range []int{1 << 20, 3 << 20} {
		if _, _, err := codec.Decode(make([]byte, size), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	price := func() budget.Price { return budget.Price{Object: 1 << 20, Byte: 2} }
	list := func(ctx context.Context, pods int) error {
		r := &resourceStorage{Interface: lister{pods: pods}, decoded: decoded}
		return r.GetList(ctx, "/pods", storage.ListOptions{}, &example.PodList{})
	}
	for pods, want := range map[int]int64{0: 0, 1: 5 << 20, 8: 40 << 20} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			b := budget.New(1 << 30)
			account := b.Account(budget.Caller{}, price)
			if err := list(budget.NewContext(t.Context(), account), pods); err != nil {
				t.Fatal(err)
			}
			if got := b.Stats().Used; got != want {
				t.Errorf("%d bytes are held, want %d", got, want)
			}
			account.Close()
			if got := b.Stats().Used; got != 0 {
				t.Errorf("%d bytes are held at the end", got)
			}
		})
	}
	t.Run("no room", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := budget.New(64 << 20)
			other := b.Account(budget.Caller{}, price)
			if err := other.Hold(t.Context(), 50<<20); err != nil {
				t.Fatal(err)
			}
			account := b.Account(budget.Caller{}, price)
			if err := list(budget.NewContext(t.Context(), account), 8); !apierrors.IsTooManyRequests(err) {
				t.Errorf("got %v", err)
			}
			other.Close()
			if err := list(budget.NewContext(t.Context(), account), 8); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("the server's own", func(t *testing.T) {
		if err := list(t.Context(), 8); err != nil {
			t.Error(err)
		}
	})
}
