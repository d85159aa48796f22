package mvcc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// price returns the memory of the responses in the tests: ten times the stored size.
func price() budget.Price { return budget.Price{Byte: 10} }

// largePods creates pods of a megabyte each; every second one has a label.
func largePods(t *testing.T, pods storage.Interface, n int) {
	t.Helper()
	for i := range n {
		pod := samplePod(fmt.Sprintf("pod-%03d", i))
		pod.Annotations["fill"] = strings.Repeat("x", 1<<20)
		if i%2 == 0 {
			pod.Labels["even"] = "true"
		}
		if err := pods.Create(t.Context(), key(pod.Name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func list(ctx context.Context, pods storage.Interface, predicate storage.SelectionPredicate) (int, error) {
	var found example.PodList
	err := pods.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: predicate}, &found)
	return len(found.Items), err
}

func pages(limit int64) storage.SelectionPredicate {
	everything := storage.Everything
	everything.Limit = limit
	return everything
}

// A list holds its memory until its account is closed; a page holds less.
func TestGetList_heldMemory(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	largePods(t, pods, 16)
	const one = 10 << 20
	for name, test := range map[string]struct {
		predicate storage.SelectionPredicate
		found     int
		need      int64
	}{
		"all":        {storage.Everything, 16, 16 * one},
		"a page":     {pages(3), 3, 3 * one},
		"selected":   {selecting(t, "even=true"), 8, 8 * one},
		"nothing":    {selecting(t, "odd=true"), 0, 4 * one}, // the memory that the list starts with
		"all, by no": {selecting(t, "!odd"), 16, 16 * one},
	} {
		t.Run(name, func(t *testing.T) {
			b := budget.New(1 << 30)
			account := b.Account(budget.Caller{}, price)
			found, err := list(budget.NewContext(t.Context(), account), pods, test.predicate)
			if err != nil || found != test.found {
				t.Fatalf("%d found, want %d; %v", found, test.found, err)
			}
			if used := b.Stats().Used; used < test.need || used > 2*test.need+test.need/10 {
				t.Errorf("%d MiB held, want %d and less than twice that", used>>20, test.need>>20)
			}
			account.Close()
			if used := b.Stats().Used; used != 0 {
				t.Errorf("%d bytes held after the request", used)
			}
		})
	}
}

func TestGetList_noMemory_waitsThenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, pods := open(t, memory.New(), mvcc.Options{BookmarkInterval: -1})
		largePods(t, pods, 16)
		for name, predicate := range map[string]storage.SelectionPredicate{
			"all": storage.Everything,
			// The list is read twice, because its initial memory is not enough.
			"selected": selecting(t, "even=true"),
		} {
			b := budget.New(128 << 20)
			other := b.Account(budget.Caller{}, price)
			if err := other.Hold(t.Context(), 64<<20); err != nil {
				t.Fatal(err)
			}
			account := b.Account(budget.Caller{}, price)
			ctx := budget.NewContext(t.Context(), account)
			if _, err := list(ctx, pods, predicate); !apierrors.IsTooManyRequests(err) {
				t.Errorf("%s: %v", name, err)
			} else if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 1 {
				t.Errorf("%s: try again after %d seconds", name, seconds)
			}
			type result struct {
				found int
				err   error
			}
			done := make(chan result, 1)
			go func() {
				found, err := list(ctx, pods, predicate)
				done <- result{found, err}
			}()
			synctest.Wait()
			if len(done) > 0 {
				t.Errorf("%s: it did not wait", name)
			}
			other.Close()
			if r := <-done; r.err != nil || r.found == 0 {
				t.Errorf("%s: %d found, %v", name, r.found, r.err)
			}
			account.Close()
			if s := b.Stats(); s.Used != 0 || s.Refused != 1 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}

func TestHoldObject_largeObjects(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	largePods(t, pods, 1)
	create(t, pods, "small")
	b := budget.New(1 << 30)
	for name, need := range map[string]int64{"pod-000": 10 << 20, "small": 0} {
		account := b.Account(budget.Caller{}, price)
		ctx := budget.NewContext(t.Context(), account)
		if err := pods.Get(ctx, key(name), storage.GetOptions{}, &example.Pod{}); err != nil {
			t.Fatal(err)
		}
		if used := b.Stats().Used; used < need || used > 2*need {
			t.Errorf("get %s: %d bytes held, want %d", name, used, need)
		}
		if _, err := tryAnnotate(ctx, pods, name, "new"); err != nil {
			t.Fatal(err)
		}
		if used := b.Stats().Used; used < 4*need || used > 8*need {
			t.Errorf("update %s: %d bytes held", name, used)
		}
		account.Close()
	}
}

// A watch releases the memory for its initial events when they are sent.
func TestWatch_initialEvents_heldMemory(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	largePods(t, pods, 4)
	b := budget.New(1 << 30)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	everything := storage.Everything
	everything.AllowWatchBookmarks = true
	yes := true
	w, err := pods.Watch(
		budget.NewContext(ctx, b.Account(budget.Caller{}, price)),
		"/pods/",
		storage.ListOptions{Recursive: true, Predicate: everything, SendInitialEvents: &yes},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for {
		if event := next(t, w); event.Type == watch.Bookmark {
			break
		}
	}
	// The bookmark is received before the watch continues.
	testwait.Until(t, "nothing is held any more", func() bool { return b.Stats().Used == 0 })
}
