package cluster

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// follower is an informer on the flunders of a namespace, with a record of its requests.
type follower struct {
	informer cache.SharedIndexInformer
	client   dynamic.ResourceInterface // not the informer's

	mu       sync.Mutex
	asked    []string // the queries of its requests
	failed   []string // their failures
	versions []string // of all its events, NAME:RESOURCEVERSION; a deletion has a minus
}

// follow returns when the informer has synced. It ends with the test.
func follow(t *testing.T, config *rest.Config, resource schema.GroupVersionResource, ns string) *follower {
	t.Helper()
	other, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{client: other.Resource(resource).Namespace(ns)}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			f.mu.Lock()
			f.asked = append(f.asked, r.URL.RawQuery)
			f.mu.Unlock()
			response, err := next.RoundTrip(r)
			f.mu.Lock()
			defer f.mu.Unlock()
			if err != nil && r.Context().Err() == nil {
				f.failed = append(f.failed, err.Error())
			} else if err == nil && response.StatusCode != http.StatusOK {
				f.failed = append(f.failed, response.Status)
			}
			return response, err
		})
	})
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f.informer = dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, ns, nil).ForResource(resource).Informer()
	told := func(sign string, obj any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if m, ok := obj.(metav1.Object); ok {
			f.versions = append(f.versions, sign+m.GetName()+":"+m.GetResourceVersion())
		}
	}
	if _, err := f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { told("", obj) },
		UpdateFunc: func(old, obj any) {
			if old.(metav1.Object).GetResourceVersion() != obj.(metav1.Object).GetResourceVersion() { // not a list's
				told("", obj)
			}
		},
		DeleteFunc: func(obj any) { told("-", obj) },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.informer.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	if !cache.WaitForCacheSync(ending(t).Done(), f.informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	return f
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// queries returns the queries of its requests so far.
func (f *follower) queries() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// failures returns the requests with unexpected responses.
func (f *follower) failures() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.failed...)
}

// catchesUp waits until the informer has the server's objects.
func (f *follower) catchesUp(t *testing.T) {
	t.Helper()
	testwait.NoError(t, "the informer has what the server has", func(ctx context.Context) error {
		list, err := f.client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		want, got := map[string]string{}, map[string]string{}
		for _, obj := range list.Items {
			want[obj.GetName()] = obj.GetResourceVersion()
		}
		for _, obj := range f.informer.GetStore().List() {
			m := obj.(metav1.Object)
			got[m.GetName()] = m.GetResourceVersion()
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("it has %v, the server %v", got, want)
		}
		return nil
	})
}

// toldOnce fails the test if the informer got a version of an object twice.
func (f *follower) toldOnce(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[string]bool{}
	for _, v := range f.versions {
		if seen[v] {
			t.Errorf("told of %s twice", v)
		}
		seen[v] = true
	}
}

func newFlunder(name, reference string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1", "kind": "Flunder", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"reference": reference},
	}}
}

func flunders(t *testing.T, config *rest.Config, ns string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(alphaFlunders).Namespace(ns)
}

// write creates, changes and deletes: of count flunders the even ones stay.
func write(t *testing.T, client dynamic.ResourceInterface, prefix string, count int) {
	t.Helper()
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if _, err := client.Create(t.Context(), newFlunder(name, "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		patch := []byte(`{"spec":{"reference":"b"}}`)
		if _, err := client.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func watchList(t *testing.T, w *wardle) {
	ns := namespace(t)
	client := flunders(t, host.Admin(), ns)
	write(t, client, "before", 20)
	for _, resource := range []schema.GroupVersionResource{alphaFlunders, betaFlunders} {
		f := follow(t, host.Admin(), resource, ns)
		if got := len(f.informer.GetStore().List()); got < 10 {
			t.Errorf("synced with %d objects", got)
		}
		if q := f.queries(); len(q) != 1 || !strings.Contains(q[0], "sendInitialEvents=true") {
			t.Errorf("the list did not come as a watch: %q", q)
		}
		write(t, client, "after-"+resource.Version, 20)
		f.catchesUp(t)
		f.toldOnce(t)
	}
}

func kubectlWatches(t *testing.T, w *wardle) {
	ns := namespace(t)
	k := newKubectl(t, host.Admin())
	k.given(fmt.Sprintf(alphaFlunder, "first"), "-n", ns, "create", "-f", "-")
	cmd := k.command(ending(t), "", "-n", ns, "get", "flunders", "--watch", "--output-watch-events")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	next := func() string {
		lines.Scan()
		event, rest, _ := strings.Cut(lines.Text(), " ")
		name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		return event + " " + name
	}
	if header, first := next(), next(); header != "EVENT NAME" || first != "ADDED first" {
		t.Fatalf("kubectl prints %q and %q", header, first)
	}
	write(t, flunders(t, host.Admin(), ns), "w", 2)
	for _, want := range []string{"ADDED w-0", "MODIFIED w-0", "ADDED w-1", "MODIFIED w-1", "DELETED w-1"} {
		if got := next(); got != want {
			t.Fatalf("watched %q, want %q", got, want)
		}
	}
}

// A list that kube-apiserver forwards in one piece, and in pages.
func longLists(t *testing.T, w *wardle) {
	ns := namespace(t)
	client := flunders(t, host.Admin(), ns)
	const count = 1000
	var writers errgroup.Group
	writers.SetLimit(16)
	for i := range count {
		writers.Go(func() error {
			_, err := client.Create(t.Context(), newFlunder(fmt.Sprintf("f-%04d", i), strings.Repeat("x", 200)), metav1.CreateOptions{})
			return err
		})
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	f := follow(t, host.Admin(), alphaFlunders, ns)
	for _, limit := range []int64{0, 300} {
		names, next, pages := map[string]bool{}, "", 0
		for {
			list, err := client.List(t.Context(), metav1.ListOptions{Limit: limit, Continue: next})
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, item := range list.Items {
				names[item.GetName()] = true
			}
			if next = list.GetContinue(); next == "" {
				break
			}
		}
		if want := map[int64]int{0: 1, 300: 4}[limit]; len(names) != count || pages != want {
			t.Errorf("limit %d: %d flunders on %d pages", limit, len(names), pages)
		}
	}
	if n := len(f.informer.GetStore().List()); n != count {
		t.Errorf("the informer has %d", n)
	}
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	f.catchesUp(t)
}
