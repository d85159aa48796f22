package annextest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"
)

func widgets(t testing.TB, p *annextest.Plane) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
}

func createWidget(t testing.TB, p *annextest.Plane, name string) *unstructured.Unstructured {
	t.Helper()
	made, err := widgets(t, p).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": "small"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func namesOf(t testing.TB, p *annextest.Plane) string {
	t.Helper()
	list, err := widgets(t, p).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return strings.Join(names, " ")
}

func TestPlane_Fork_isAPrivateCopy(t *testing.T) {
	t.Parallel()
	base := annextest.StartPlane(t, shop(), annex.Options{})
	a := createWidget(t, base, "a")
	createWidget(t, base, "b")
	forks := []*annextest.Plane{base.Fork(t), base.Fork(t), base.Fork(t)}
	createWidget(t, base, "c")
	for i, fork := range forks {
		t.Run(fmt.Sprint("fork ", i), func(t *testing.T) {
			got, err := widgets(t, fork).Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil || got.GetUID() != a.GetUID() || got.GetResourceVersion() != a.GetResourceVersion() {
				t.Errorf("%v, %v", got, err)
			}
			own := fmt.Sprint("own-", i)
			createWidget(t, fork, own)
			if err := widgets(t, fork).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if got, want := namesOf(t, fork), "a "+own; got != want {
				t.Errorf("the fork has %s, want %s", got, want)
			}
			second := fork.Fork(t)
			if got, want := namesOf(t, second), "a "+own; got != want {
				t.Errorf("the fork of the fork has %s, want %s", got, want)
			}
			// The history is copied, too.
			events, err := widgets(t, fork).Watch(t.Context(), metav1.ListOptions{ResourceVersion: a.GetResourceVersion()})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Deleted} {
				if event := <-events.ResultChan(); event.Type != want {
					t.Errorf("%v, want %s", event, want)
				}
			}
		})
	}
	if got, want := namesOf(t, base), "a b c"; got != want {
		t.Errorf("the base has %s, want %s", got, want)
	}
}

func TestPlane_snapshot_isRestored(t *testing.T) {
	t.Parallel()
	base := annextest.StartPlane(t, shop(), annex.Options{})
	a := createWidget(t, base, "a")
	b := createWidget(t, base, "b")
	dir := t.TempDir()
	var texts []string
	for _, name := range []string{"one", "two"} {
		if err := base.WriteSnapshot(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Error("two snapshots of the same objects differ")
	}
	restored := annextest.RestorePlane(t, shop(), annex.Options{}, filepath.Join(dir, "one"))
	got, err := widgets(t, restored).Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil || got.GetUID() != b.GetUID() || got.GetResourceVersion() != b.GetResourceVersion() {
		t.Errorf("%v, %v", got, err)
	}
	createWidget(t, restored, "c")
	if got, want := namesOf(t, restored), "a b c"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, err = widgets(t, restored).List(t.Context(), metav1.ListOptions{
		ResourceVersion: a.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a list of an earlier revision: %v", err)
	}
	if err := base.WriteSnapshot(filepath.Join(dir, "missing", "file")); err == nil || !strings.HasPrefix(err.Error(), "write the snapshot: ") {
		t.Error(err)
	}
}

func TestPlane_badInput_endsTheTest(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := shop()
	broken.Groups[0].Name = "Bad_Name"
	for want, start := range map[string]func(t testing.TB){
		"Options.Storage and Options.DataDir must be empty": func(t testing.TB) {
			annextest.StartPlane(t, shop(), annex.Options{Storage: memory.Storage()})
		},
		"a plane keeps its objects in memory": func(t testing.TB) { annextest.StartPlane(t, shop(), annex.Options{DataDir: bad}) },
		"restore a plane of server shop: read the snapshot: open": func(t testing.TB) {
			annextest.RestorePlane(t, shop(), annex.Options{}, bad+"x")
		},
		bad + ": read the snapshot: the header": func(t testing.TB) { annextest.RestorePlane(t, shop(), annex.Options{}, bad) },
		"start server shop: ":                   func(t testing.TB) { annextest.StartPlane(t, broken, annex.Options{}).Config() },
		"fork a plane: start server shop: ":     func(t testing.TB) { annextest.StartPlane(t, broken, annex.Options{}).Fork(t) },
	} {
		f := &failing{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			start(f)
		}()
		<-done
		if !strings.Contains(f.said, want) {
			t.Errorf("%q, want %q", f.said, want)
		}
	}
	if err := annextest.StartPlane(t, broken, annex.Options{}).WriteSnapshot(bad); err == nil ||
		!strings.HasPrefix(err.Error(), "write a snapshot: start server shop: ") {
		t.Error(err)
	}
}

// A test may end before its server is ready.
func TestPlane_unused_ends(t *testing.T) {
	t.Parallel()
	t.Run("", func(t *testing.T) { annextest.StartPlane(t, shop(), annex.Options{}) })
}

// filled returns a plane with that many widgets, which it makes by a snapshot.
func filled(b *testing.B, n int) *annextest.Plane {
	b.Helper()
	one := annextest.StartPlane(b, shop(), annex.Options{})
	createWidget(b, one, "w-0")
	path := filepath.Join(b.TempDir(), "snapshot")
	if err := one.WriteSnapshot(path); err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	lines = lines[:len(lines)-1]
	var revision, objects int
	if _, err := fmt.Sscanf(lines[0], `{"annexSnapshot":1,"revision":%d,"objects":%d}`, &revision, &objects); err != nil {
		b.Fatal(err)
	}
	i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "/w-0\"") })
	for k := 1; k < n; k++ {
		line := strings.ReplaceAll(lines[i], "w-0", fmt.Sprint("w-", k))
		lines = append(lines, strings.Replace(line, fmt.Sprint(`"revision":`, revision), fmt.Sprint(`"revision":`, revision+k), 1))
	}
	lines[0] = fmt.Sprintf(`{"annexSnapshot":1,"revision":%d,"objects":%d}`+"\n", revision+n, len(lines)-1)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		b.Fatal(err)
	}
	return annextest.RestorePlane(b, shop(), annex.Options{}, path)
}

// BenchmarkPlane_Fork measures a copy of a server until the copy answers, and the copy alone, while all earlier copies run.
func BenchmarkPlane_Fork(b *testing.B) {
	for _, n := range []int{1, 10_000, 200_000} {
		b.Run(fmt.Sprint(n, " objects"), func(b *testing.B) {
			base := filled(b, n)
			base.Config()
			var copying time.Duration
			for b.Loop() {
				began := time.Now()
				fork := base.Fork(b)
				copying += time.Since(began)
				fork.Config()
			}
			b.ReportMetric(float64(copying.Microseconds())/float64(b.N), "us/copy")
		})
	}
}
