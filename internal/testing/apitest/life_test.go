package apitest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

// run runs a server until the test ends, or until stop is called, which returns the result of Run.
func run(t *testing.T, server annex.Server, options annex.Options) (instance *annex.Instance, stop func() error) {
	t.Helper()
	return runIn(context.Background(), t, server, options)
}

func runIn(ctx context.Context, t *testing.T, server annex.Server, options annex.Options) (instance *annex.Instance, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	if options.Listen == "" {
		options.Listen = anyPort
	}
	instance, err := annex.New(ctx, server, placed(t, options))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = instance.Run(ctx, func() { close(ready) })
	}()
	stop = func() error {
		cancel()
		<-done
		return result
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case <-ready:
	case <-done:
		t.Fatalf("the server ended: %v", result)
	}
	return instance, stop
}

// clientOf returns an administrator's client of an instance.
func clientOf(t *testing.T, instance *annex.Instance) *client {
	t.Helper()
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return connect(t, config)
}

func TestServers_twoInOneProcess_areIndependent(t *testing.T) {
	t.Parallel()
	memory := annex.Options{Storage: memory.Storage()}
	oneInstance, stopOne := run(t, shop(), memory)
	otherInstance, _ := run(t, annex.Server{Name: "other", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList](
			"widgets",
			v1.API,
		).ClusterScoped().
			WithoutStatus().
			Default(func(w *v1.Widget) { w.Spec.Size = "other" }),
	}}}}, memory)
	one, other := clientOf(t, oneInstance), clientOf(t, otherInstance)
	const otherPath = "/apis/shop.example.com/v1/widgets"
	oneWatch, otherWatch := one.watch(widgetsPath+"?watch=1"), other.watch(otherPath+"?watch=1")

	if w := one.create("w"); w.Spec.Size != "medium" {
		t.Errorf("one: %+v", w.Spec)
	}
	if w := other.post(otherPath, widget("w", status(fields{"phase": "Ready"}))).
		want(201).
		widget(); w.Spec.Size != "other" || w.Status.Phase != "Ready" ||
		w.Namespace != "" {
		t.Errorf("other: %+v", w)
	}
	one.create("only")
	oneWatch.want("ADDED w", "ADDED only")
	otherWatch.want("ADDED w")
	one.get(otherPath + "/only").want(404)
	other.get(otherPath+"/only").refused(404, metav1.StatusReasonNotFound)
	other.get(widgetsBetaPath).want(404)
	other.get(otherPath + "/w/status").want(404)
	one.get(widgetsPath + "/w/status").want(200)

	if err := stopOne(); err != nil {
		t.Errorf("one ended with %v", err)
	}
	oneWatch.ends()
	other.post(otherPath, widget("later")).want(201)
	otherWatch.want("ADDED later")
	other.get("/readyz").want(200)
}

func TestShutdown_answersRequestsInFlight(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().Admit(func(ctx context.Context, r annex.Request[v1.Widget]) error {
			if r.Name == "slow" {
				close(entered)
				<-release
			}
			return nil
		}),
	}}}}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
	instance, stop := run(t, server, options)
	c := clientOf(t, instance)
	fast := c.create("fast")
	watch := c.watch(widgetsPath + "?watch=1&resourceVersion=" + fast.ResourceVersion)
	table := c.watch(widgetsPath+"?watch=1", "Accept", tableType)
	table.next()

	answered := make(chan *answer)
	go func() { answered <- c.post(widgetsPath, widget("slow")) }()
	<-entered
	ended := make(chan error)
	go func() { ended <- stop() }()
	// Watches end while the request is still in progress.
	table.ends()
	select {
	case err := <-ended:
		t.Fatalf("the server ended with a request in progress: %v", err)
	default:
	}
	close(release)
	slow := (<-answered).want(201).widget()
	if err := <-ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
	watch.ends()

	// All acknowledged objects exist after a restart, and watches resume.
	entered, release = make(chan struct{}), make(chan struct{})
	instance, _ = run(t, server, options)
	c = clientOf(t, instance)
	if got := c.widget("slow"); got.ResourceVersion != slow.ResourceVersion || got.UID != slow.UID {
		t.Errorf("after the restart: %+v, was %+v", got.ObjectMeta, slow.ObjectMeta)
	}
	resumed, whole := c.resume(widgetsPath+"?watch=1", fast.ResourceVersion)
	if whole {
		resumed.want("ADDED slow")
	}
	c.create("after")
	resumed.want("ADDED after")
}

// TestShutdown_leavesNoGoroutines is not parallel: it counts goroutines.
func TestShutdown_leavesNoGoroutines(t *testing.T) {
	timed := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().GracePeriod(time.Hour).DeleteAfterGracePeriod().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			_, err := annex.ListerFor[v1.Widget](env)
			return func(context.Context, annex.Request[v1.Widget]) error { return nil }, err
		}),
	}}}}
	live := func(t *testing.T, storage annex.Storage) {
		options := annex.Options{Storage: storage, ListenInsecure: anyPort}
		if storage.Name() == embedded.Name {
			options.DataDir = filepath.Join(t.TempDir(), "data")
		}
		instance, stop := run(t, timed, options)
		c := clientOf(t, instance)
		c.create("w")
		c.delete(widgetsPath+"/w", nil).want(200)
		watch := c.watch(widgetsPath + "?watch=1")
		watch.want("ADDED w")
		c.get("/openapi/v3").want(200)
		if err := stop(); err != nil {
			t.Error(err)
		}
		watch.ends()
		c.http.CloseIdleConnections()
	}
	for _, storage := range []annex.Storage{memory.Storage(), embedded.Dir("")} {
		// Everything that a process starts once is started now.
		t.Run("first on "+storage.Name(), func(t *testing.T) { live(t, storage) })
		before := goroutines()
		t.Run("again on "+storage.Name(), func(t *testing.T) {
			for range 3 {
				live(t, storage)
			}
		})
		testwait.NoError(t, string(storage.Name()), func(context.Context) error {
			if left := more(goroutines(), before); len(left) > 0 {
				return fmt.Errorf("still running:\n%s", strings.Join(left, "\n\n"))
			}
			return nil
		})
	}
}

// goroutines returns the stacks of all goroutines, by their creators.
func goroutines() map[string][]string {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	all := map[string][]string{}
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		_, creator, _ := strings.Cut(stack, "created by ")
		creator, _, _ = strings.Cut(creator, " in goroutine")
		all[creator] = append(all[creator], stack)
	}
	return all
}

func more(now, before map[string][]string) []string {
	var left []string
	for creator, stacks := range now {
		if len(stacks) > len(before[creator]) {
			left = append(left, stacks...)
		}
	}
	return left
}

func TestGeneration_unmanaged_isTheClients(t *testing.T) {
	t.Parallel()
	instance, _ := run(t, annex.Server{Name: "plain", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).WithoutGeneration(),
	}}}}, annex.Options{Storage: memory.Storage()})
	c := clientOf(t, instance)
	const path = "/apis/shop.example.com/v1/namespaces/default/widgets"
	if w := c.post(path, widget("w")).want(201).widget(); w.Generation != 0 {
		t.Errorf("created with generation %d", w.Generation)
	}
	if w := c.patch("application/merge-patch+json", path+"/w", spec(fields{"size": "large"})).
		want(200).
		widget(); w.Generation != 0 ||
		w.Spec.Size != "large" {
		t.Errorf("changed to %+v", w)
	}
}
