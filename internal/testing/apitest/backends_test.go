package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
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

// run runs a server at the place until the returned function is called.
func (p *place) run(t *testing.T, server annex.Server, options annex.Options) (stop func()) {
	t.Helper()
	options.TokenAuthFile = tokenFile(t)
	instance, err := annex.New(t.Context(), server, placed(t, options))
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

// config returns the config of joe, who may do anything.
func (p *place) config() *rest.Config {
	return &rest.Config{Host: p.url, BearerToken: "root", QPS: -1}
}

// informer runs an informer that reports its events.
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
		AddFunc: added,
		UpdateFunc: func(old, obj any) {
			if old.(metav1.Object).GetResourceVersion() != obj.(metav1.Object).GetResourceVersion() {
				updated(obj)
			}
		},
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

// contains fails the test unless all parts are in the response.
func (a *answer) contains(parts ...string) {
	a.t.Helper()
	for _, part := range parts {
		if !strings.Contains(string(a.raw), part) {
			a.t.Errorf("%s: no %q in\n%s", a.asked, part, a.raw)
		}
	}
}

// hears fails the test unless exactly these events come next, in any order.
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

func TestInformer_lostMemory_recovers(t *testing.T) {
	t.Parallel()
	about(t, memory.Name)
	at := newPlace(t)
	stop := at.run(t, shop(), annex.Options{Storage: memory.Storage()})
	c := connect(t, at.config())
	c.create("a")
	before := c.create("b")
	heard := at.informer(t, v1.API().GroupVersion.WithResource("widgets"))
	hears(t, heard, "added default/a", "added default/b")

	// The next server does not have the first one's objects, and writes less.
	stop()
	stop = at.run(t, shop(), annex.Options{Storage: memory.Storage()})
	defer func() { stop() }()
	after := c.create("b")
	hears(t, heard, "deleted default/a", "updated default/b")
	c.create("c")
	hears(t, heard, "added default/c")

	if e := c.watch(widgetsPath + "?watch=1&resourceVersion=" + before.ResourceVersion).
		next(); e.Type != "ERROR" ||
		text(e.Object, "reason") != "Expired" {
		t.Errorf("a watch from before: %v", e)
	}
	if e := c.watch(widgetsPath + "?watch=1&resourceVersion=" + after.ResourceVersion + "0").
		next(); e.Type != "ERROR" ||
		text(e.Object, "reason") != "Expired" {
		t.Errorf("a watch from a clock that was ahead: %v", e)
	}
	c.get(widgetsPath+"?resourceVersionMatch=Exact&resourceVersion="+before.ResourceVersion).
		refused(http.StatusGone, metav1.StatusReasonExpired)
	c.get(widgetsPath + "?resourceVersionMatch=NotOlderThan&resourceVersion=" + before.ResourceVersion).want(http.StatusOK)
	if older, err := resourceversion.CompareResourceVersion(before.ResourceVersion, after.ResourceVersion); err != nil || older >= 0 {
		t.Errorf("resource version %s was followed by %s: %v", before.ResourceVersion, after.ResourceVersion, err)
	}
	if n, err := strconv.ParseUint(after.ResourceVersion, 10, 64); err != nil || n >= 1<<53 {
		t.Errorf("resource version %s is no number that JSON carries exactly", after.ResourceVersion)
	}
}

// apart keeps namespaces and shelves in the data directory and widgets in memory.
func apart() annex.Server {
	return only(
		widgets().StoredIn(memory.Storage()),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	)
}

func TestStoredIn_storagePerKind(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	at := newPlace(t)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	stop := at.run(t, apart(), options)
	c := connect(t, at.config())
	c.namespace("other")
	kept := c.post(shelvesPath, shelf("kept")).want(http.StatusCreated).str("metadata", "resourceVersion")
	lost := c.create("lost").ResourceVersion
	heard := at.informer(t, v1.API().GroupVersion.WithResource("widgets"))
	shelves := at.informer(t, v1.API().GroupVersion.WithResource("shelves"))
	hears(t, heard, "added default/lost")
	hears(t, shelves, "added kept")

	c.get("/readyz?verbose").contains("[+]storage-embedded ok", "[+]storage-memory ok")
	c.get("/metrics").contains(`annex_storage_watches{storage="embedded"}`, `annex_storage_watches{storage="memory"}`)

	stop()
	stop = at.run(t, apart(), options)
	defer func() { stop() }()
	hears(t, heard, "deleted default/lost")
	if got := c.get(shelvesPath+"/kept").want(http.StatusOK).str("metadata", "resourceVersion"); got != kept {
		t.Errorf("the shelf's resource version is %s, was %s", got, kept)
	}
	c.get("/api/v1/namespaces/other").want(http.StatusOK)
	again := c.create("lost").ResourceVersion
	if newer, err := resourceversion.CompareResourceVersion(again, lost); err != nil || newer <= 0 {
		t.Errorf("resource version %s was followed by %s: %v", lost, again, err)
	}
	hears(t, heard, "added default/lost")
	c.post(shelvesPath, shelf("new")).want(http.StatusCreated)
	hears(t, shelves, "added new")
}

func TestStoredIn_operatorOverrides(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir(), StorageOf: map[schema.GroupResource]annex.Storage{
		{Group: "shop.example.com", Resource: "widgets"}: embedded.Dir(""),
		{Group: "shop.example.com", Resource: "shelves"}: memory.Storage(),
	}}
	instance, stop := run(t, apart(), options)
	c := clientOf(t, instance)
	c.create("kept")
	c.post(shelvesPath, shelf("lost")).want(http.StatusCreated)
	stop()
	instance, _ = run(t, apart(), options)
	c = clientOf(t, instance)
	c.widget("kept")
	c.get(shelvesPath + "/lost").want(http.StatusNotFound)
}

func TestStoredIn_failingStorage_othersContinue(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	instance, _ := run(t, apart(), options)
	c := clientOf(t, instance)
	if err := os.Rename(filepath.Join(options.DataDir, "storage"), filepath.Join(options.DataDir, "moved")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the server has noticed", func() bool { return c.get("/readyz").code != http.StatusOK })
	c.post(shelvesPath, shelf("s")).refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "takes no writes")
	c.create("w")
	c.get("/readyz?verbose").contains("[-]storage-embedded failed: read-only, its directory was removed", "[+]storage-memory ok")
}

func TestStoredIn_invalidStorages(t *testing.T) {
	t.Parallel()
	shelves := func() *annex.KindBuilder[v1.Shelf] {
		return annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped()
	}
	for name, test := range map[string]struct {
		server  annex.Server
		options annex.Options
		want    string
	}{
		"one that cannot be opened": {
			only(widgets().StoredIn(tape{})), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()},
			`storage tape: apitest_test.tape cannot be opened: it is neither a driver of a backend nor of a journal`,
		},
		"two of a name": {
			only(widgets()), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir(),
				StorageOf: map[schema.GroupResource]annex.Storage{{Group: "shop.example.com", Resource: "widgets"}: embedded.Dir("elsewhere")}},
			"Options.StorageOf widgets.shop.example.com=embedded: another storage embedded, at ",
		},
		"of a resource that is not served": {
			only(widgets()), annex.Options{Storage: memory.Storage(),
				StorageOf: map[schema.GroupResource]annex.Storage{{Resource: "widgets"}: memory.Storage()}},
			"Options.StorageOf widgets: unknown resource; resources of this server: clusterrolebindings.rbac.authorization.k8s.io, " +
				"clusterroles.rbac.authorization.k8s.io, namespaces, rolebindings.rbac.authorization.k8s.io, roles.rbac.authorization.k8s.io, " +
				"serviceaccounts, widgets.shop.example.com",
		},
		"without a data directory": {
			only(widgets(), shelves().StoredIn(embedded.Dir(""))), annex.Options{Storage: memory.Storage()},
			"StoredIn of kind Shelf: the storage embedded requires a data directory",
		},
		"without etcd": {
			only(widgets().StoredIn(etcd.Cluster(etcd.Options{}))), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()},
			"StoredIn of kind Widget: no etcd endpoints",
		},
		"objects that outlive their namespaces": {
			only(widgets().StoredIn(embedded.Dir(""))), annex.Options{Storage: memory.Storage(), DataDir: t.TempDir()},
			"widgets.shop.example.com are stored in embedded, but their namespaces in memory, which loses them on a restart: add " +
				"Options.StorageOf " +
				"namespaces=embedded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			instance, err := annex.New(t.Context(), test.server, test.options)
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) || !errors.As(err, new(*annex.ConfigError)) {
				t.Errorf("got %v, want a usage error with %q", err, test.want)
			}
		})
	}
}

// The namespaces are in another storage than their objects.
func TestNamespaces_deletion_otherStorage(t *testing.T) {
	t.Parallel()
	instance, _ := run(t, apart(), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()})
	c := clientOf(t, instance)
	for i := range 10 {
		namespace := fmt.Sprint("n", i)
		c.namespace(namespace)
		path := "/apis/shop.example.com/v1/namespaces/" + namespace + "/widgets"
		c.post(path, widget("first")).want(http.StatusCreated)
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for n := 0; c.post(path, widget(fmt.Sprintf("w%d-%d", w, n))).code == http.StatusCreated; n++ {
				}
			})
		}
		c.delete("/api/v1/namespaces/"+namespace, nil).want(http.StatusOK)
		writers.Wait()
		testwait.Until(t, "the namespace to go", func() bool { return c.get("/api/v1/namespaces/"+namespace).code == http.StatusNotFound })
		if left := c.get(path).names(); len(left) > 0 {
			t.Errorf("left in %s: %v", namespace, left)
		}
	}
}

func TestFiles_oneKindBesideAnotherStorage(t *testing.T) {
	inPlainText(t)
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	server := func() annex.Server { return only(movedWidgets().StoredIn(files.Dir(""))) }
	instance, stop := run(t, server(), options)
	c := clientOf(t, instance)
	made := c.create("a")
	// The files of objects that have moved are in their old place; people may write files of either group there, in a
	// namespace that is in the other storage.
	dir := filepath.Join(options.DataDir, "objects", "legacy.example.com", "gizmos")
	testwait.Until(t, "the file of a", func() bool { _, err := os.Stat(filepath.Join(dir, "default", "a.yaml")); return err == nil })
	for name, content := range map[string]string{
		"g": "apiVersion: legacy.example.com/v1\nkind: Gizmo\nmetadata: {name: g, namespace: extra}\nspec: {pieces: [leg=4]}\n",
		"w": "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: extra}\nspec: {size: small}\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "extra"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "extra", name+".yaml"), content)
	}
	in := strings.Replace(widgetsPath, "/default/", "/extra/", 1)
	testwait.Until(t, "the files to be served", func() bool { return len(c.get(in).names()) == 2 })
	if got := c.get(in + "/g").widget(); len(got.Spec.Parts) != 1 || got.Spec.Size != "large" {
		t.Errorf("a gizmo as a widget: %+v", got)
	}
	c.get("/readyz?verbose").contains("[+]storage-embedded ok", "[+]storage-files ok")
	stop()
	instance, _ = run(t, server(), options)
	c = clientOf(t, instance)
	if got := c.widget("a"); got.ResourceVersion != made.ResourceVersion {
		t.Errorf("resource version %s, was %s", got.ResourceVersion, made.ResourceVersion)
	}
	c.delete("/api/v1/namespaces/extra", nil).want(http.StatusOK)
	testwait.Until(t, "the namespace to go", func() bool { return c.get("/api/v1/namespaces/extra").code == http.StatusNotFound })
	testwait.Until(t, "the files to go", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "extra", "*.yaml"))
		return err == nil && len(left) == 0
	})
}

func TestHooks_readKindsOfOtherStorages(t *testing.T) {
	t.Parallel()
	instance, _ := run(t, only(
		widgets().StoredIn(memory.Storage()).AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			shelves, err := annex.ListerFor[v1.Shelf](env)
			return func(ctx context.Context, r annex.Request[v1.Widget]) error {
				_, err := shelves.Get(ctx, "", "s")
				return err
			}, err
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	), annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()})
	c := clientOf(t, instance)
	c.post(widgetsPath, widget("w")).want(http.StatusNotFound)
	c.post(shelvesPath, shelf("s")).want(http.StatusCreated)
	testwait.Until(t, "the hook to see the shelf", func() bool { return c.post(widgetsPath, widget("w")).code == http.StatusCreated })
}

// tape is a driver that describes itself, and implements nothing more.
type tape struct{}

func (tape) Name() string           { return "tape" }
func (tape) Traits() driver.Traits  { return driver.Traits{} }
func (tape) Validate(string) error  { return nil }
func (tape) Location(string) string { return "" }
