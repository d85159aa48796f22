package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
)

// TestFullDisk_informersAndWriters_recover fills the disk under clients of client-go and makes space again. Meanwhile
// writes fail, and writers retry by themselves; the informer sees every object without listing again.
func TestFullDisk_informersAndWriters_recover(t *testing.T) {
	for _, storage := range []annex.Storage{embedded.Dir(""), files.Dir("")} {
		t.Run(storage.Name(), func(t *testing.T) {
			t.Parallel()
			about(t, storage.Name())
			testFullDisk(t, storage)
		})
	}
}

func testFullDisk(t *testing.T, storage annex.Storage) {
	// To be opened again, a journal needs as much room again as its newest log takes, up to 8 MiB.
	disk := smallDisk(t, 64<<20)
	full := filepath.Join(disk, "full")
	instance, _ := run(t, shop(), annex.Options{Storage: storage, DataDir: filepath.Join(disk, "data")})
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	var lists, refused count
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode == http.StatusServiceUnavailable {
				refused.add()
			}
			if r.Method == http.MethodGet && !strings.Contains(r.URL.RawQuery, "watch=") {
				lists.add()
			}
			return response, err
		})
	})
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	widgets := client.Resource(v1.API().GroupVersion.WithResource("widgets")).Namespace("default")

	seen := &names{}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, v1.API().GroupVersion.WithResource("widgets"), "default", 0,
		cache.Indexers{}, nil).
		Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { seen.add(object.(metav1.Object).GetName()) },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	testwait.Until(t, "the informer has listed", informer.HasSynced)
	before := lists.now()

	acknowledged := &names{}
	padding := strings.Repeat("x", 64<<10)
	// There is only room for some objects, and for any number of attempts.
	var filling atomic.Bool
	rooms := make(chan struct{}, 12)
	for i := range 4 {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if !filling.Load() {
					select {
					case <-rooms:
					case <-ctx.Done():
					}
				}
				object := &unstructured.Unstructured{Object: widget(fmt.Sprintf("w-%d-%d", i, n), spec(fields{"options": fields{"padding": padding}}))}
				_, err := widgets.Create(ctx, object, metav1.CreateOptions{})
				if err == nil {
					acknowledged.add(object.GetName())
				}
				if err != nil && ctx.Err() == nil && !isOfAFullDisk(err) {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	c := clientOf(t, instance)
	for range 3 {
		fill(t, full)
		filling.Store(true)
		for range cap(rooms) - len(rooms) {
			rooms <- struct{}{} // for waiting writers
		}
		testwait.Until(t, "read-only", func() bool { return c.get("/readyz").code != http.StatusOK })
		was := refused.now()
		testwait.Until(t, "a writer is refused", func() bool { return refused.now() > was })
		filling.Store(false)
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "ready again", func(context.Context) error {
			if a := c.get("/readyz?verbose"); a.code != http.StatusOK {
				return errors.New(string(a.raw))
			}
			return nil
		})
		acks := acknowledged.len()
		testwait.Until(t, "writers go on", func() bool {
			select {
			case rooms <- struct{}{}:
			default:
			}
			return acknowledged.len() > acks+8
		})
	}
	testwait.Until(t, "the informer has seen every object", func() bool { return len(seen.missing(acknowledged)) == 0 })
	if lists.now() != before {
		t.Errorf("the informer listed %d times", lists.now())
	}
	t.Logf("%d objects acknowledged, %d answers of 503", acknowledged.len(), refused.now())
}

// isOfAFullDisk reports whether a write failed as it may while the disk is full.
func isOfAFullDisk(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "unknown") || errors.Is(err, context.Canceled)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// count is a number for concurrent use.
type count struct {
	mu sync.Mutex
	n  int
}

func (c *count) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *count) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// names is a set for concurrent use.
type names struct {
	mu  sync.Mutex
	set map[string]bool
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.set == nil {
		n.set = map[string]bool{}
	}
	n.set[name] = true
}

func (n *names) len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.set)
}

// missing returns the elements of others that n does not have.
func (n *names) missing(others *names) (missing []string) {
	others.mu.Lock()
	defer others.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range others.set {
		if !n.set[name] {
			missing = append(missing, name)
		}
	}
	return missing
}
