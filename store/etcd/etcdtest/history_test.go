package etcdtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// pastPods are pods whose history is read.
type pastPods struct {
	t       *testing.T
	backend store.Backend
	store.Historian
}

func openPast(t *testing.T, cipher value.Transformer) pastPods {
	t.Helper()
	backend := open(t, startCluster(t, 1, nil), func(o *etcd.Options) { o.Prefix = "/some/where" })
	resource := storetest.Pods("/pods")
	resource.Transformer = cipher
	pods, err := backend.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage is ready", func(context.Context) error { return pods.ReadinessCheck() })
	return pastPods{t, backend, pods.(store.Historian)}
}

func (p pastPods) create(name string) uint64 {
	p.t.Helper()
	return revisionOf(p.t, mustCreate(p.t, p, name))
}

func (p pastPods) annotate(name, note string) uint64 {
	p.t.Helper()
	out := &example.Pod{}
	annotated := storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
		o.(*example.Pod).Annotations = map[string]string{"note": note}
		return o, nil
	})
	if err := p.GuaranteedUpdate(p.t.Context(), key(name), out, false, nil, annotated, nil); err != nil {
		p.t.Fatal(err)
	}
	return revisionOf(p.t, out)
}

func (p pastPods) delete(name string) uint64 {
	p.t.Helper()
	out := &example.Pod{}
	if err := p.Delete(p.t.Context(), key(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	return revisionOf(p.t, out)
}

func (p pastPods) compact(revision uint64) {
	p.t.Helper()
	if err := p.backend.(store.Maintenance).Compact(p.t.Context(), revision); err != nil {
		p.t.Fatal(err)
	}
}

func revisionOf(t testing.TB, pod *example.Pod) uint64 {
	t.Helper()
	revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// described is a page of the history as text: revisions, what they replaced, and notes or deletions.
func described(page store.PastPage) string {
	var all []string
	for _, r := range page.Revisions {
		text := fmt.Sprintf("%d<%d", r.Revision, r.Previous)
		if r.Deleted {
			text += " deleted"
		}
		if pod, ok := r.Object.(*example.Pod); ok {
			text += " " + pod.Name + pod.Annotations["note"]
		}
		all = append(all, text)
	}
	if page.More {
		all = append(all, "more")
	}
	return strings.Join(all, ", ")
}

func (p pastPods) expect(page store.PastPage, err error, format string, args ...any) {
	p.t.Helper()
	if got, want := described(page), fmt.Sprintf(format, args...); err != nil || got != want {
		p.t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func (p pastPods) history(name string, before uint64, limit int) (store.PastPage, error) {
	return p.History(context.Background(), key(name), before, limit)
}

func (p pastPods) at(name string, at store.Point) (string, error) {
	out := &example.Pod{}
	if err := p.Past(context.Background(), key(name), at, out); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s%s", out.ResourceVersion, out.Name, out.Annotations["note"]), nil
}

// Objects whose lives were short, and encrypted ones, are in the history as well.
func TestHistory_ofSeveralLives_inPages(t *testing.T) {
	for name, cipher := range map[string]value.Transformer{"plain": nil, "encrypted": storetest.Ciphers(t)["secretbox"]} {
		t.Run(name, func(t *testing.T) {
			p := openPast(t, cipher)
			created := p.create("a")
			one := p.annotate("a", "1")
			two := p.annotate("a", "2")
			deleted := p.delete("a")
			p.create("ab") // is not of this key
			again := p.create("a")
			gone := p.delete("a")
			third := p.create("a")
			last := p.annotate("a", "3")

			page, err := p.history("a", 0, 50)
			p.expect(page, err, "%d<%d a3, %d<0 a, %d<%d deleted, %d<0 a, %d<%d deleted, %d<%d a2, %d<%d a1, %d<0 a",
				last, third, third, gone, again, again, deleted, two, two, one, one, created, created)
			page, err = p.history("a", 0, 1)
			p.expect(page, err, "%d<%d a3, more", last, third)
			page, err = p.history("a", last, 2)
			p.expect(page, err, "%d<0 a, %d<%d deleted, more", third, gone, again)
			page, err = p.history("a", gone, 3)
			p.expect(page, err, "%d<0 a, %d<%d deleted, %d<%d a2, more", again, deleted, two, two, one)
			page, err = p.history("a", two, 2)
			p.expect(page, err, "%d<%d a1, %d<0 a", one, created, created)
			page, err = p.history("a", created, 2)
			p.expect(page, err, "")
			page, err = p.history("never", 0, 2)
			p.expect(page, err, "")

			for revision, want := range map[uint64]string{created: "a", one: "a1", two: "a2", again: "a", last: "a3"} {
				if got, err := p.at("a", store.Point{Revision: revision}); err != nil || got != fmt.Sprintf("%d %s", revision, want) {
					t.Errorf("at %d: %s, %v", revision, got, err)
				}
			}
			for _, revision := range []uint64{created - 1, deleted, gone} {
				if got, err := p.at("a", store.Point{Revision: revision}); !storage.IsNotFound(err) {
					t.Errorf("at %d: %s, %v", revision, got, err)
				}
			}
		})
	}
}

func TestHistory_compacted(t *testing.T) {
	p := openPast(t, nil)
	p.create("a")
	one := p.annotate("a", "1")
	two := p.annotate("a", "2")
	three := p.annotate("a", "3")
	p.create("b")
	end := p.delete("b")
	p.compact(two)
	page, err := p.history("a", 0, 50)
	p.expect(page, err, "%d<%d a3, %d<%d a2", three, two, two, two-1)
	if page.Since.Revision != two {
		t.Errorf("the history is kept since %s, want %d", page.Since, two)
	}

	var notKept *store.NotKeptError
	if got, err := p.at("a", store.Point{Revision: one}); !errors.As(err, &notKept) || notKept.Since.Revision != two {
		t.Errorf("at a compacted revision: %s, %v", got, err)
	}
	if _, err := p.RevisionAt(t.Context(), store.Point{Revision: one}); !errors.As(err, &notKept) || notKept.Since.Revision != two {
		t.Errorf("lists at a compacted revision: %v", err)
	}
	if got, err := p.at("a", store.Point{Revision: two}); err != nil || got != fmt.Sprintf("%d a2", two) {
		t.Errorf("at the oldest revision: %s, %v", got, err)
	}
	var future *store.FutureError
	if got, err := p.at("a", store.Point{Revision: end + 1}); !errors.As(err, &future) || future.Newest.Revision != end {
		t.Errorf("at a future revision: %s, %v", got, err)
	}
	if _, err := p.RevisionAt(t.Context(), store.Point{Revision: end + 1}); !errors.As(err, &future) {
		t.Errorf("lists at a future revision: %v", err)
	}

	p.compact(end)
	page, err = p.history("b", 0, 50)
	p.expect(page, err, "")
	page, err = p.history("a", 0, 50)
	p.expect(page, err, "%d<%d a3", three, three-1)
	page, err = p.Deletions(t.Context(), "/pods/", 0, 50)
	p.expect(page, err, "")
}

func TestHistory_ofADeletedObject_beginsInTheCompactedPart(t *testing.T) {
	p := openPast(t, nil)
	p.create("a")
	one := p.annotate("a", "1")
	p.create("b")
	p.compact(p.create("c"))
	deleted := p.delete("a")
	page, err := p.history("a", 0, 50)
	p.expect(page, err, "%d<%d deleted, %d<%d a1", deleted, one, one, one-1)
	page, err = p.history("a", 0, 1)
	p.expect(page, err, "%d<%d deleted, more", deleted, one)
}

func TestHistory_times(t *testing.T) {
	p := openPast(t, nil)
	write := func(name string, at time.Time) uint64 {
		t.Helper()
		out := &example.Pod{}
		written := storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
			pod := o.(*example.Pod)
			pod.Namespace, pod.Name = "ns", name
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "anna", Time: &metav1.Time{Time: at}}}
			return pod, nil
		})
		if err := p.GuaranteedUpdate(t.Context(), key(name), out, true, nil, written, nil); err != nil {
			t.Fatal(err)
		}
		return revisionOf(t, out)
	}
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	created := write("a", noon)
	updated := write("a", noon.Add(time.Hour))
	write("b", noon)
	p.delete("b")
	write("b", noon.Add(2*time.Hour))
	p.annotate("b", "without a time")
	p.create("c")
	for text, want := range map[string]uint64{"12:00": created, "12:59": created, "13:00": updated, "20:00": updated} {
		at, err := time.Parse("2006-01-02 15:04", "2026-01-01 "+text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.at("a", store.Point{Time: at}); err != nil || got != fmt.Sprintf("%d a", want) {
			t.Errorf("at %s: %s, %v, want %d", text, got, err, want)
		}
	}
	var notKept *store.NotKeptError
	if got, err := p.at("a", store.Point{Time: noon.Add(-time.Second)}); !errors.As(err, &notKept) || notKept.Since.Revision != created {
		t.Errorf("before the first revision: %s, %v", got, err)
	}
	var future *store.FutureError
	if got, err := p.at("a", store.Point{Time: time.Now().Add(time.Hour)}); !errors.As(err, &future) {
		t.Errorf("in the future: %s, %v", got, err)
	}
	got, err := p.at("b", store.Point{Time: noon.Add(time.Hour)})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "may have been deleted") {
		t.Errorf("around a deletion: %s, %v", got, err)
	}
	if got, err := p.at("c", store.Point{Time: noon}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "no managed fields") {
		t.Errorf("without managed fields: %s, %v", got, err)
	}
	if got, err := p.at("never", store.Point{Time: noon}); !storage.IsNotFound(err) {
		t.Errorf("of no object: %s, %v", got, err)
	}
	if _, err := p.RevisionAt(t.Context(), store.Point{Time: noon}); !apierrors.IsBadRequest(err) {
		t.Errorf("lists at a time: %v", err)
	}
}

func TestDeletions_onEtcd(t *testing.T) {
	p := openPast(t, nil)
	p.compact(p.create("first"))
	revisions := map[string][2]uint64{}
	for _, name := range []string{"a", "b", "c", "d", "twice"} {
		created := p.create(name)
		revisions[name] = [2]uint64{p.delete(name), created}
	}
	p.create("b")
	created := p.create("twice")
	revisions["twice"] = [2]uint64{p.delete("twice"), created}
	text := func(names ...string) string {
		var all []string
		for _, name := range names {
			if name != "more" {
				name = fmt.Sprintf("%d<%d deleted %s", revisions[name][0], revisions[name][1], name)
			}
			all = append(all, name)
		}
		return strings.Join(all, ", ")
	}
	page, err := p.Deletions(t.Context(), "/pods/", 0, 50)
	p.expect(page, err, "%s", text("twice", "d", "c", "a"))
	page, err = p.Deletions(t.Context(), "/pods/ns/", 0, 2)
	p.expect(page, err, "%s", text("twice", "d", "more"))
	page, err = p.Deletions(t.Context(), "/pods/ns/", revisions["d"][0], 2)
	p.expect(page, err, "%s", text("c", "a"))
	page, err = p.Deletions(t.Context(), "/pods/other/", 0, 2)
	p.expect(page, err, "")

	list := &example.PodList{}
	at := store.Point{Revision: revisions["d"][1]}
	if err := p.PastList(t.Context(), "/pods/", at, storage.Everything, list); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, pod := range list.Items {
		names[pod.Name] = true
	}
	if got := fmt.Sprint(slices.Sorted(maps.Keys(names))); got != "[d first]" || list.ResourceVersion != fmt.Sprint(at.Revision) {
		t.Errorf("the list of the past is %s at %s", got, list.ResourceVersion)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Deletions(ctx, "/pods/", 0, 50); err == nil {
		t.Error("a request that has ended is answered")
	}
}

// A whole server answers questions to the history from etcd, and undoes and restores.
func TestServer_historyOnEtcd(t *testing.T) {
	config := annextest.StartWith(t, shop(), annex.Options{
		Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(startCluster(t, 1, nil))}),
	})
	objects := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	ctx := t.Context()
	raw, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.CloseIdleConnections)
	type item struct{ Revision, Operation, User, Time, Name string }
	request := func(method, path, body string) (int, []item, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, method, config.Host+"/history/shop.example.com/v1/namespaces/default/widgets"+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := raw.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		var page struct{ Items []item }
		_ = json.Unmarshal(text, &page) // other answers have no items
		return answer.StatusCode, page.Items, string(text)
	}
	created, err := objects.Create(ctx, newWidget("w"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created.SetLabels(map[string]string{"at": "sea"})
	labelled, err := objects.Update(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	code, items, text := request("GET", "/w", "")
	if code != 200 || len(items) != 2 || items[0].Operation != "update" || items[0].User != "" || items[0].Time == "" ||
		items[0].Revision != labelled.GetResourceVersion() || items[1].Operation != "create" || !strings.Contains(text, "metadata.labels") {
		t.Errorf("the history: %d %s", code, text)
	}
	if code, _, text := request("GET", "/w?from="+items[1].Revision, ""); code != 200 || !strings.Contains(text, `"sea"`) {
		t.Errorf("the difference: %d %s", code, text)
	}
	if code, _, text := request("POST", "/w", `{"undo":"`+items[0].Revision+`"}`); code != 200 || strings.Contains(text, `"sea"`) {
		t.Errorf("undo: %d %s", code, text)
	}
	if code, _, text := request("GET", "/w?at=9000000000000000000", ""); code != 400 || !strings.Contains(text, "in the future") {
		t.Errorf("in the future: %d %s", code, text)
	}
	if err := objects.Delete(ctx, "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	code, items, text = request("GET", "?deleted=true", "")
	if code != 200 || len(items) != 1 || items[0].Name != "w" {
		t.Fatalf("the deleted objects: %d %s", code, text)
	}
	if code, _, text := request("POST", "/w", `{"restore":"`+items[0].Revision+`"}`); code != 201 {
		t.Errorf("restore: %d %s", code, text)
	}
	if _, err := objects.Get(ctx, "w", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
