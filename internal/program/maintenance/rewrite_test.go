package maintenance_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

const (
	key1  = "{aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}"
	key2  = "{secretbox: {keys: [{name: key2, secret: ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=}]}}"
	plain = "{identity: {}}"
)

var podResource = schema.GroupResource{Resource: "pods"}

// encrypted opens the pods of a core with the encryption of some providers, and returns them with a Rewriting.
func encrypted(t testing.TB, core *mvcc.Core, providers ...string) (storage.Interface, maintenance.Rewriting) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [pods]\n  providers: [" +
		strings.Join(
			providers,
			", ",
		) + "]\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := encryption.Open(t.Context(), encryption.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	resource := storetest.Pods("/pods")
	resource.Transformer = e.TransformerForResource(podResource)
	pods, err := core.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	return pods, maintenance.Rewriting{
		Resource: podResource,
		Storage:  pods,
		Values:   func(ctx context.Context) iter.Seq2[store.Value, error] { return core.Values(ctx, "/pods") },
		New:      func() runtime.Object { return &example.Pod{} },
		Key:      e.Key(podResource),
	}
}

func openCore(t testing.TB, j journal.Journal) *mvcc.Core {
	t.Helper()
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = core.Close() })
	return core
}

func key(i int) string { return fmt.Sprintf("/pods/ns/pod-%04d", i) }

func create(t testing.TB, pods storage.Interface, count int) {
	t.Helper()
	for i := range count {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("pod-%04d", i), UID: "uid", Generation: 7,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "writer", Operation: "Apply"}},
		}}
		if err := pods.Create(t.Context(), key(i), pod, nil, uint64(i%2)*3600); err != nil {
			t.Fatal(err)
		}
	}
}

func list(t testing.TB, pods storage.Interface) []example.Pod {
	t.Helper()
	all := &example.PodList{}
	if err := pods.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, all); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func rewrite(t testing.TB, r maintenance.Rewriting) maintenance.Rewritten {
	t.Helper()
	report, err := maintenance.Rewrite(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestRewrite_rotatedKey(t *testing.T) {
	const count = 100
	core := openCore(t, memory.New())
	pods, _ := encrypted(t, core, key1)
	create(t, pods, count)
	before := list(t, pods)

	_, r := encrypted(t, core, key2, key1)
	report := rewrite(t, r)
	want := maintenance.Rewritten{
		Resource: "pods", LookedAt: count, Written: count,
		Keys: []maintenance.KeyCount{{Provider: "secretbox", Name: "key2", Objects: count}},
	}
	if !reflect.DeepEqual(report, want) || report.Old() != 0 {
		t.Errorf("got %+v", report)
	}
	for v, err := range core.Values(t.Context(), "/pods") {
		if err != nil || !strings.HasPrefix(string(v.Data), "k8s:enc:secretbox:v1:key2:") {
			t.Errorf("%s is stored as %.40q, %v", v.Key, v.Data, err)
		}
	}

	pods, r = encrypted(t, core, key2)
	after := list(t, pods)
	for i := range after {
		if after[i].ResourceVersion == before[i].ResourceVersion {
			t.Errorf("%s has the version %s, and had %s", after[i].Name, after[i].ResourceVersion, before[i].ResourceVersion)
		}
		after[i].ResourceVersion, before[i].ResourceVersion = "", ""
	}
	if !reflect.DeepEqual(before, after) {
		t.Error("the objects have changed")
	}

	revision := core.Revision()
	if report = rewrite(t, r); report.Current != count || report.Written != 0 {
		t.Errorf("once more: %+v", report)
	}
	if core.Revision() != revision {
		t.Error("objects that are stored as they should be were written")
	}
}

func TestRewrite_interrupted_continues(t *testing.T) {
	const count = 300
	core := openCore(t, memory.New())
	pods, _ := encrypted(t, core, plain)
	create(t, pods, count)

	_, r := encrypted(t, core, key1, plain)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	values := r.Values
	r.Values = func(ctx context.Context) iter.Seq2[store.Value, error] {
		return func(yield func(store.Value, error) bool) {
			seen := 0
			for v, err := range values(ctx) {
				if seen++; seen > count/2 {
					cancel()
				}
				if !yield(v, err) {
					return
				}
			}
		}
	}
	first, err := maintenance.Rewrite(ctx, r)
	if !errors.Is(err, context.Canceled) || first.Written == 0 || first.Written == count {
		t.Fatalf("got %+v, %v", first, err)
	}
	r.Values = values
	rest := rewrite(t, r)
	// Some writes complete after their writer was stopped.
	if rest.LookedAt != count || rest.Written > count-first.Written || rest.Written+rest.Current != count || rest.Old() != 0 {
		t.Errorf("after %+v: %+v", first, rest)
	}
}

func TestRewrite_unreadableObjects(t *testing.T) {
	core := openCore(t, memory.New())
	pods, _ := encrypted(t, core, key1)
	create(t, pods, 3)
	pods, _ = encrypted(t, core, plain)
	if err := pods.Create(
		t.Context(),
		key(3),
		&example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-0003"}},
		nil,
		0,
	); err != nil {
		t.Fatal(err)
	}

	_, r := encrypted(t, core, key2, plain)
	report := rewrite(t, r)
	if report.LookedAt != 4 || report.Written != 1 || report.Failed != 3 || len(report.Failures) != 3 || report.Old() != 3 {
		t.Fatalf("got %+v", report)
	}
	for i, failure := range report.Failures {
		if failure.Key != key(i) || failure.Error == "" {
			t.Errorf("got %+v", failure)
		}
	}
	if want := (maintenance.KeyCount{Provider: "aescbc", Name: "key1", Objects: 3, Old: true}); report.Keys[0] != want {
		t.Errorf("got %+v", report.Keys)
	}
}

// full is a journal that accepts a limited number of records.
type full struct {
	journal.Journal
	left atomic.Int64
}

var errFull = errors.New("the disk is full")

func (f *full) Append(record journal.Record) (func() error, error) {
	if f.left.Add(-1) < 0 {
		return nil, errFull
	}
	return f.Journal.Append(record)
}

func (f *full) Err() error {
	if f.left.Load() < 0 {
		return errFull
	}
	return nil
}

func TestRewrite_readOnlyStorage(t *testing.T) {
	j := &full{Journal: memory.New()}
	j.left.Store(2050)
	core := openCore(t, j)
	pods, _ := encrypted(t, core, plain)
	create(t, pods, 2000)
	_, r := encrypted(t, core, key1, plain)
	report, err := maintenance.Rewrite(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), "rewrite pods: the store takes no writes") {
		t.Errorf("got %v", err)
	}
	if report.Written != 50 || report.LookedAt > 200 {
		t.Errorf("got %d written of %d", report.Written, report.LookedAt)
	}
}

func TestRewrite_keepsTTL(t *testing.T) {
	core := openCore(t, memory.New())
	pods, _ := encrypted(t, core, plain)
	create(t, pods, 2)
	pods, r := encrypted(t, core, key1, plain)
	rewrite(t, r)
	for i, want := range []int64{0, 3600} {
		err := pods.GuaranteedUpdate(t.Context(), key(i), &example.Pod{}, false, nil,
			func(object runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
				if meta.TTL > want || meta.TTL < want-60 {
					t.Errorf("object %d has %d seconds left, want %d", i, meta.TTL, want)
				}
				return object, nil, nil
			}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRewrite_remote_reportsEachResource(t *testing.T) {
	c := core(t)
	pods, r := encrypted(t, c, plain)
	create(t, pods, 3)
	local, remote := serve(t, c)
	told := make(chan struct{})
	local.Resources = []maintenance.Resource{
		{Resource: podResource, Prefix: "/pods", In: "memory", New: r.New, Open: func() (storage.Interface, error) { return pods, nil }},
		{
			Resource: schema.GroupResource{Resource: "others"},
			Prefix:   "/others",
			In:       "memory",
			New:      r.New,
			Open: func() (storage.Interface, error) {
				select {
				case <-told:
					return pods, nil
				case <-time.After(10 * time.Second):
					return nil, errors.New("the progress of the pods has not been reported yet")
				}
			},
		},
	}
	var reports []string
	err := remote.Rewrite(t.Context(), nil, func(done maintenance.Rewritten) {
		if reports = append(reports, fmt.Sprint(done.Resource, " ", done.Current)); len(reports) == 1 {
			close(told)
		}
	})
	if err != nil || !slices.Equal(reports, []string{"pods 3", "others 0"}) {
		t.Errorf("told %v, %v", reports, err)
	}
}
