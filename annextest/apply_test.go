package annextest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// failing is a test that records its failures.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) + "\n" }
func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func TestApply(t *testing.T) {
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
		"good-1.yaml": "# a comment\n---\n" + fmt.Sprintf(widget, "small") + "---\napiVersion: shop.example.com/v1\nkind: Shelf\nmetadata: " +
			"{name: s}\n",
		"good-2.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: elsewhere}\n---\n" +
			strings.Replace(fmt.Sprintf(widget, "small"), "{name", "{namespace: elsewhere, name", 1),
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

// Files are applied in the order of their names, but admission of a kind may require an object of another kind.
func TestApply_objectNeedsAnother(t *testing.T) {
	var shelf atomic.Bool
	kinds := []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if !shelf.Load() || r.Object.Name == "never" {
				return errors.New("there is no shelf for it")
			}
			return nil
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().Admit(func(context.Context, annex.Request[v1.Shelf]) error {
			shelf.Store(true)
			return nil
		}),
	}
	config := annextest.Start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: kinds}}})
	const widget = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: %s}\nspec: {size: small}\n"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"1.yaml":     fmt.Sprintf(widget, "w"),
		"2.yaml":     "apiVersion: shop.example.com/v1\nkind: Shelf\nmetadata: {name: s}\n",
		"never.yaml": fmt.Sprintf(widget, "never"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, obj := range annextest.Apply(t, config, filepath.Join(dir, "?.yaml")) {
		got = append(got, obj.GetKind())
	}
	if strings.Join(got, ", ") != "Widget, Shelf" {
		t.Errorf("applied %v, want them in the order of their files", got)
	}
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		annextest.Apply(f, config, filepath.Join(dir, "never.yaml"))
	}()
	<-done
	if !strings.Contains(f.said, "there is no shelf for it") {
		t.Errorf("the test is failed for %q", f.said)
	}
}
