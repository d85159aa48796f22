package annextest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/shop/v1"
)

// failing is a test that keeps what it is failed for.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) + "\n" }
func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func TestApplyAppliesTheObjectsInFiles(t *testing.T) {
	config := annextest.Start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Warn(func(_ context.Context, w *v1.Widget) []string {
			if w.Spec.Size == "large" {
				return []string{"hard to carry"}
			}
			return nil
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	}}}})
	const widget = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: %s}\n"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good-1.yaml":  "# a comment\n---\n" + fmt.Sprintf(widget, "small") + "---\napiVersion: shop.example.com/v1\nkind: Shelf\nmetadata: {name: s}\n",
		"good-2.yaml":  "apiVersion: v1\nkind: Namespace\nmetadata: {name: elsewhere}\n---\n" + strings.Replace(fmt.Sprintf(widget, "small"), "{name", "{namespace: elsewhere, name", 1),
		"large.yaml":   fmt.Sprintf(widget, "large"),
		"number.yaml":  fmt.Sprintf(widget, "7"),
		"kind.yaml":    "apiVersion: shop.example.com/v1\nkind: Wodget\nmetadata: {name: w}\n",
		"nothing.yaml": "a: [",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	var got []string
	for _, obj := range annextest.Apply(t, config, filepath.Join(dir, "good-*.yaml")) {
		if obj.GetUID() == "" {
			t.Errorf("%s is not what the server made of it", obj.GetName())
		}
		got = append(got, obj.GetKind()+" "+obj.GetNamespace()+"/"+obj.GetName())
	}
	if want := "Widget default/w, Shelf /s, Namespace /elsewhere, Widget elsewhere/w"; strings.Join(got, ", ") != want {
		t.Errorf("applied %s, want %s", strings.Join(got, ", "), want)
	}

	for file, want := range map[string]string{
		"large.yaml":   "warning: hard to carry",
		"number.yaml":  "spec.size",
		"kind.yaml":    `no matches for kind "Wodget"`,
		"nothing.yaml": "yaml: ",
		"*.json":       "no files match",
	} {
		f := &failing{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			annextest.Apply(f, config, filepath.Join(dir, file))
		}()
		<-done
		if !strings.Contains(f.said, want) || strings.Count(f.said, "\n") != 1 {
			t.Errorf("%s: the test is failed for %q, want one line with %q", file, f.said, want)
		}
	}
}
