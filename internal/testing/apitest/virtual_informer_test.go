package apitest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

var widgetsResource = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}

// switching is a transport to the server that runs now. It records the requests.
type switching struct {
	to     atomic.Pointer[rest.Config]
	mu     sync.Mutex
	asked  []string
	cached map[*rest.Config]http.RoundTripper
}

func (s *switching) RoundTrip(r *http.Request) (*http.Response, error) {
	config := s.to.Load()
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
	transport := s.cached[config]
	if transport == nil {
		var err error
		if transport, err = rest.TransportFor(config); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		s.cached[config] = transport
	}
	s.mu.Unlock()
	r = r.Clone(r.Context())
	host := strings.SplitN(config.Host, "://", 2)
	r.URL.Scheme, r.URL.Host = host[0], host[1]
	return transport.RoundTrip(r)
}

func (s *switching) did(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, asked := range s.asked {
		if strings.Contains(asked, part) {
			return true
		}
	}
	return false
}

// runServer starts a server until stop.
func runServer(t *testing.T, server annex.Server) (config *rest.Config, stop func()) {
	t.Helper()
	instance, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	if config, err = instance.ClientConfig(); err != nil {
		t.Fatal(err)
	}
	return config, stop
}

// An informer sees the writes of clients and of the system, in an order, and ends with the system's state; also when
// the server is restarted, which loses its mirror.
func TestVirtual_informers(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(*system) annex.Source[v1.Widget]{
		"polled": (*system).polled,
		"fed":    (*system).fed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem("w0", "w1")
			server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{virtualWidgets(source(s))}}}}
			config, stop := runServer(t, server)
			way := &switching{cached: map[*rest.Config]http.RoundTripper{}}
			way.to.Store(config)
			client := dynamic.NewForConfigOrDie(&rest.Config{Host: "http://server", Transport: way, QPS: -1})
			informer := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(widgetsResource).Informer()
			seen := watchOrder(t, informer)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { informer.RunWithContext(ctx) })
			t.Cleanup(func() { cancel(); running.Wait() })
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				t.Fatal("no sync")
			}
			if !way.did("sendInitialEvents=true") || way.did("widgets?limit") {
				t.Errorf("the informer did not begin with a watch list: %v", way.asked)
			}
			disturb(t, s, client, 300)
			testwait.NoError(t, "after many writes", func(context.Context) error { return differ(s, informer) })

			stop()
			s.set("meanwhile", nil)
			s.drop("w0")
			config, _ = runServer(t, server)
			way.to.Store(config)
			testwait.NoError(t, "after a restart", func(context.Context) error { return differ(s, informer) })
			disturb(t, s, client, 50)
			testwait.NoError(t, "after more writes", func(context.Context) error { return differ(s, informer) })
			if seen.Load() < 100 {
				t.Errorf("only %d events", seen.Load())
			}
		})
	}
}

// watchOrder fails the test if an informer goes back in time.
func watchOrder(t *testing.T, informer cache.SharedIndexInformer) *atomic.Int64 {
	t.Helper()
	events := &atomic.Int64{}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { events.Add(1) },
		UpdateFunc: func(before, after any) {
			events.Add(1)
			old, now := before.(*unstructured.Unstructured), after.(*unstructured.Unstructured)
			if version(now) < version(old) {
				t.Errorf("%s went back from revision %s to %s", now.GetName(), old.GetResourceVersion(), now.GetResourceVersion())
			}
		},
		DeleteFunc: func(any) { events.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// version orders resource versions of one length.
func version(u *unstructured.Unstructured) string { return u.GetResourceVersion() }

// disturb writes to a few widgets through the server and concurrently behind its back, while others list.
func disturb(t *testing.T, s *system, client dynamic.Interface, writes int) {
	t.Helper()
	widgets := client.Resource(widgetsResource).Namespace("default")
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			for i := range writes / 4 {
				name := fmt.Sprintf("w%d", random.IntN(5))
				var err error
				switch random.IntN(7) {
				case 0:
					s.set(name, func(w *v1.Widget) { w.Spec.Options = map[string]string{"outside": fmt.Sprint(worker, i)} })
				case 1:
					s.drop(name)
				case 2:
					err = widgets.Delete(t.Context(), name, metav1.DeleteOptions{})
				case 3:
					_, err = widgets.List(t.Context(), metav1.ListOptions{})
				case 4:
					_, err = widgets.Get(t.Context(), name, metav1.GetOptions{})
				case 5:
					_, err = widgets.Patch(
						t.Context(),
						name,
						types.MergePatchType,
						fmt.Appendf(nil, `{"spec":{"options":{"inside":"%d %d"}}}`, worker, i),
						metav1.PatchOptions{},
					)
				default:
					_, err = widgets.Create(
						t.Context(),
						&unstructured.Unstructured{Object: widget(name, spec(fields{"size": "large"}))},
						metav1.CreateOptions{},
					)
				}
				if err != nil && !slices.ContainsFunc([]string{
					"not found", "already exists", "has been modified",
					// Another worker dropped it behind the server's back before the response.
					"does not exist after it was written",
				}, func(expected string) bool { return strings.Contains(err.Error(), expected) }) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
}

// differ returns the difference between an informer's cache and the system.
func differ(s *system, informer cache.SharedIndexInformer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if got, want := len(informer.GetStore().ListKeys()), len(s.widgets); got != want {
		return fmt.Errorf("%d widgets, want %d", got, want)
	}
	for key, w := range s.widgets {
		item, ok, _ := informer.GetStore().GetByKey(key)
		if !ok {
			return fmt.Errorf("%s is missing", key)
		}
		options, _, _ := unstructured.NestedStringMap(item.(*unstructured.Unstructured).Object, "spec", "options")
		if fmt.Sprint(options) != fmt.Sprint(w.Spec.Options) && len(options)+len(w.Spec.Options) > 0 {
			return fmt.Errorf("%s: options %v, want %v", key, options, w.Spec.Options)
		}
	}
	return nil
}
