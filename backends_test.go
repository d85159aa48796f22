package annex_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/shop/v1"
)

// place is a URL at which one server after the other answers.
type place struct {
	url     string
	handler atomic.Pointer[http.Handler]
}

func newPlace(t *testing.T) *place {
	p := &place{}
	listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := p.handler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		http.Error(w, "no server is there", http.StatusServiceUnavailable)
	}))
	t.Cleanup(listening.Close)
	p.url = listening.URL
	return p
}

// run runs a server at the place until the function returned is called.
func (p *place) run(t *testing.T, server annex.Server, options annex.Options) (stop func()) {
	t.Helper()
	options.SecurePort = annex.PortOff
	options.TokenAuthFile = tokenFile(t)
	instance, err := annex.New(t.Context(), server, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- instance.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	handler := instance.Handler()
	p.handler.Store(&handler)
	return func() {
		t.Helper()
		p.handler.Store(nil)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// config is joe's, who may all.
func (p *place) config() *rest.Config {
	return &rest.Config{Host: p.url, BearerToken: "root", QPS: -1}
}

// informer is a running one that tells what it learns.
func (p *place) informer(t *testing.T, resource schema.GroupVersionResource) <-chan string {
	t.Helper()
	client, err := dynamic.NewForConfig(p.config())
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 100)
	tell := func(what string) func(any) {
		return func(obj any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			if err != nil {
				t.Error(err)
			}
			heard <- what + " " + key
		}
	}
	added, updated, deleted := tell("added"), tell("updated"), tell("deleted")
	informer := dynamicinformer.NewFilteredDynamicInformer(client, resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    added,
		UpdateFunc: func(_, obj any) { updated(obj) },
		DeleteFunc: deleted,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return heard
}

// hears fails the test unless exactly this is heard next, in any order.
func hears(t *testing.T, heard <-chan string, want ...string) {
	t.Helper()
	timeout := time.After(patience)
	for len(want) > 0 {
		select {
		case got := <-heard:
			i := slices.Index(want, got)
			if i < 0 {
				t.Fatalf("heard %q, want %q", got, want)
			}
			want = slices.Delete(want, i, i+1)
		case <-timeout:
			t.Fatalf("heard nothing more, want %q", want)
		}
	}
}

func TestAnInformerOutlivesAMemoryThatWasLost(t *testing.T) {
	t.Parallel()
	at := newPlace(t)
	stop := at.run(t, shop(), annex.Options{Storage: annex.Memory})
	c := connect(t, at.config())
	c.create("a")
	before := c.create("b")
	heard := at.informer(t, v1.API().GroupVersion.WithResource("widgets"))
	hears(t, heard, "added default/a", "added default/b")

	// The next server knows nothing of the first one's objects, and writes less.
	stop()
	stop = at.run(t, shop(), annex.Options{Storage: annex.Memory})
	defer func() { stop() }()
	after := c.create("b")
	hears(t, heard, "deleted default/a", "updated default/b")
	c.create("c")
	hears(t, heard, "added default/c")

	if e := c.watch(widgetsPath + "?watch=1&resourceVersion=" + before.ResourceVersion).next(); e.Type != "ERROR" || text(e.Object, "reason") != "Expired" {
		t.Errorf("a watch from before: %v", e)
	}
	c.get(widgetsPath+"?resourceVersionMatch=Exact&resourceVersion="+before.ResourceVersion).refused(http.StatusGone, metav1.StatusReasonExpired)
	c.get(widgetsPath + "?resourceVersionMatch=NotOlderThan&resourceVersion=" + before.ResourceVersion).want(http.StatusOK)
	if older, err := resourceversion.CompareResourceVersion(before.ResourceVersion, after.ResourceVersion); err != nil || older >= 0 {
		t.Errorf("resource version %s was followed by %s: %v", before.ResourceVersion, after.ResourceVersion, err)
	}
	if n, err := strconv.ParseUint(after.ResourceVersion, 10, 64); err != nil || n >= 1<<53 {
		t.Errorf("resource version %s is no number that JSON carries exactly", after.ResourceVersion)
	}
}
