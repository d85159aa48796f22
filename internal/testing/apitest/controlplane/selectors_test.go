package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/storetest"
)

// field is a selectable field of a version of widgets.
type field struct{ version, path string }

func (f field) of(w *unstructured.Unstructured) string {
	value, ok, err := unstructured.NestedFieldNoCopy(w.Object, strings.Split(f.path, ".")...)
	if err != nil || !ok {
		return ""
	}
	return fmt.Sprint(value)
}

// selections compares the results of field selectors with the full list of objects.
type selections struct {
	t      *testing.T
	random *rand.Rand
	all    dynamic.Interface
	write  map[string]func(value int64) map[string]any // the spec of a random widget, by version

	compared, found int
}

func (s *selections) widgets(version string) dynamic.ResourceInterface {
	resource := widgetsResource
	resource.Version = version
	return s.all.Resource(resource).Namespace("default")
}

// change creates, changes or deletes a widget in one of the versions.
func (s *selections) change() {
	s.t.Helper()
	versions := slices.Sorted(maps.Keys(s.write))
	version := versions[s.random.IntN(len(versions))]
	name, spec := fmt.Sprint("w", s.random.IntN(30)), s.write[version](s.random.Int64N(6))
	widgets, ctx := s.widgets(version), s.t.Context()
	made := widget(name, spec)
	made.SetAPIVersion("stable.example.com/" + version)
	_, err := widgets.Create(ctx, made, metav1.CreateOptions{})
	switch {
	case !apierrors.IsAlreadyExists(err):
	case s.random.IntN(4) == 0:
		err = widgets.Delete(ctx, name, metav1.DeleteOptions{})
	default:
		patch, _ := json.Marshal(map[string]any{"spec": spec}) // numbers and strings only, so it cannot fail
		_, err = widgets.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		s.t.Fatalf("%s in %s: %v", name, version, err)
	}
}

func described(w *unstructured.Unstructured) string {
	return fmt.Sprint(w.GetName(), "@", w.GetResourceVersion(), " ", w.GetAPIVersion(), " ", w.Object["spec"])
}

// compare lists by a field; with a limit it lists in pages, and changes objects between them.
func (s *selections) compare(f field, value string, opts metav1.ListOptions) {
	s.t.Helper()
	opts.FieldSelector = f.path + "=" + value
	var got, want []string
	var revision string
	for {
		page, err := s.widgets(f.version).List(s.t.Context(), opts)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, w := range page.Items {
			got = append(got, described(&w))
		}
		revision = page.GetResourceVersion()
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			break
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
		s.change()
	}
	all, err := s.widgets(f.version).
		List(s.t.Context(), metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, w := range all.Items {
		if f.of(&w) == value {
			want = append(want, described(&w))
		}
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("%s %s at %s:\n got %q\nwant %q", f.version, opts.FieldSelector, revision, got, want)
	}
	s.compared, s.found = s.compared+1, s.found+len(got)
}

// through changes objects, and compares lists and watches with field selectors.
func (s *selections) through(what string, values map[field][]string) {
	s.t.Helper()
	fields := slices.SortedFunc(maps.Keys(values), func(a, b field) int { return strings.Compare(a.version+a.path, b.version+b.path) })
	f := fields[s.random.IntN(len(fields))]
	watched := values[f][s.random.IntN(len(values[f]))]
	followed := s.watch(f, watched)
	older := ""
	for range 40 {
		s.change()
		f := fields[s.random.IntN(len(fields))]
		value := values[f][s.random.IntN(len(values[f]))]
		switch s.random.IntN(4) {
		case 0:
			s.compare(f, value, metav1.ListOptions{Limit: 1 + s.random.Int64N(3)})
		case 1:
			if older != "" {
				s.compare(f, value, metav1.ListOptions{ResourceVersion: older, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
			}
		default:
			s.compare(f, value, metav1.ListOptions{})
		}
		if s.random.IntN(5) == 0 {
			list, err := s.widgets(f.version).List(s.t.Context(), metav1.ListOptions{Limit: 1})
			if err != nil {
				s.t.Fatal(err)
			}
			older = list.GetResourceVersion()
		}
	}
	s.follows(what, f, watched, followed)
	if s.t.Failed() {
		s.t.FailNow()
	}
}

func (s *selections) watch(f field, value string) watch.Interface {
	s.t.Helper()
	followed, err := s.widgets(f.version).Watch(s.t.Context(), metav1.ListOptions{FieldSelector: f.path + "=" + value})
	if err != nil {
		s.t.Fatalf("watch %v: %v", f, err)
	}
	s.t.Cleanup(followed.Stop)
	return followed
}

// follows reads a watch until it agrees with a list. It starts again when the watch ends, as watches do when the
// definition changes.
func (s *selections) follows(what string, f field, value string, followed watch.Interface) {
	s.t.Helper()
	list, err := s.widgets(f.version).List(s.t.Context(), metav1.ListOptions{FieldSelector: f.path + "=" + value})
	if err != nil {
		s.t.Fatal(err)
	}
	want := map[string]string{}
	for _, w := range list.Items {
		want[w.GetName()] = described(&w)
	}
	got := map[string]string{}
	ctx, cancel := context.WithTimeout(s.t.Context(), testwait.Patience)
	defer cancel()
	for !maps.Equal(got, want) {
		select {
		case event, ok := <-followed.ResultChan():
			if !ok {
				followed = s.watch(f, value)
				clear(got)
				continue
			}
			w, isWidget := event.Object.(*unstructured.Unstructured)
			if !isWidget {
				s.t.Fatalf("%s: a watch of %s %s=%s gets %v", what, f.version, f.path, value, event)
			}
			if got[w.GetName()] = described(w); event.Type == watch.Deleted {
				delete(got, w.GetName())
			}
		case <-ctx.Done():
			s.t.Fatalf("%s: a watch of %s %s=%s shows %v instead of %v", what, f.version, f.path, value, got, want)
		}
	}
}

// selectable waits until a field is selectable, or no longer selectable.
func (s *selections) selectable(f field, is bool) {
	s.t.Helper()
	testwait.Until(s.t, fmt.Sprint(f, " is selectable: ", is), func() bool {
		_, err := s.widgets(f.version).List(s.t.Context(), metav1.ListOptions{FieldSelector: f.path + "=x"})
		return is && err == nil || !is && apierrors.IsBadRequest(err)
	})
}

var (
	someSizes  = []string{"0", "1", "2", "3", "4", "5", "6"}
	someColors = []string{"", "color-0", "color-1", "color-2", "color-3", "color-4", "color-5"}
)

// A field selector has the same results with and without an index, while the definition changes. ANNEX_SEED repeats
// a failure.
func TestFieldSelector_definitionChanges(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c := clientsOf(config)
	definition := widgets(sizeAndColor)
	definition.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.size"}}
	c.define(t, definition)
	s := &selections{
		t:      t,
		random: storetest.Seeded(t),
		all:    dynamic.NewForConfigOrDie(config),
		write:  map[string]func(int64) map[string]any{},
	}
	spec := func(value int64) map[string]any {
		if value == 0 {
			return map[string]any{"size": value, "color": nil}
		}
		return map[string]any{"size": value, "color": fmt.Sprint("color-", s.random.IntN(6))}
	}
	s.write["v1"] = spec
	size, color := field{"v1", "spec.size"}, field{"v1", "spec.color"}
	s.through("with one field", map[field][]string{size: someSizes})

	c.redefine(t, definition.Name, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].SelectableFields = append(
			d.Spec.Versions[0].SelectableFields,
			apiextensionsv1.SelectableField{JSONPath: ".spec.color"},
		)
	})
	s.selectable(color, true)
	s.through("with another field", map[field][]string{size: someSizes, color: someColors})

	c.redefine(t, definition.Name, func(d *apiextensionsv1.CustomResourceDefinition) {
		second := d.Spec.Versions[0].DeepCopy()
		second.Name, second.Schema.OpenAPIV3Schema.Description = "v2", "the second"
		d.Spec.Versions[0].Storage = false
		d.Spec.Versions[0].SelectableFields = d.Spec.Versions[0].SelectableFields[1:]
		d.Spec.Versions = append(d.Spec.Versions, *second)
	})
	s.selectable(size, false)
	s.write["v2"] = spec
	size2, color2 := field{"v2", "spec.size"}, field{"v2", "spec.color"}
	s.selectable(size2, true)
	s.through("with a second version", map[field][]string{color: someColors, size2: someSizes, color2: someColors})

	c.redefine(t, definition.Name, func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Versions[1].SelectableFields = nil })
	s.selectable(color2, false)
	s.through("without fields of the second version", map[field][]string{color: someColors})
	t.Logf("%d lists were compared, with %d objects", s.compared, s.found)
}

func TestFieldSelector_convertedVersions(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c := clientsOf(config)
	definition := widgets(map[string]schemaOf{"size": {Type: "integer"}})
	definition.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.size"}}
	convertedBy(newConverter(t), definition)
	definition.Spec.Versions[1].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.dimensions.size"}}
	c.define(t, definition)
	s := &selections{t: t, random: storetest.Seeded(t), all: dynamic.NewForConfigOrDie(config), write: map[string]func(int64) map[string]any{
		"v1": func(size int64) map[string]any { return map[string]any{"size": size} },
		"v2": func(size int64) map[string]any { return map[string]any{"dimensions": map[string]any{"size": size}} },
	}}
	sizes := map[field][]string{{"v1", "spec.size"}: someSizes, {"v2", "spec.dimensions.size"}: someSizes}
	s.through("with a webhook", sizes)
	c.redefine(t, definition.Name, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = true, false
	})
	s.through("stored in the other version", sizes)
	t.Logf("%d lists were compared, with %d objects", s.compared, s.found)
}

// A list by a selectable field reads only the objects with the value; reading all of them would take some
// allocations for each. The test is not parallel, because it counts the allocations of the process.
func TestFieldSelector_index(t *testing.T) {
	instance, c := serve(t, annex.Options{})
	c.define(t, widgets(sizeAndColor))
	const objects = 400
	for i := range objects {
		made := widget(fmt.Sprint("w", i), map[string]any{"color": fmt.Sprint("color-", i%100)})
		made.SetLabels(map[string]string{"color": fmt.Sprint("color-", i%100)})
		if _, err := c.widgets.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	allocations := func(query string) float64 {
		return testing.AllocsPerRun(20, func() {
			r := httptest.NewRequest(http.MethodGet, "/apis/stable.example.com/v1/widgets?"+query, nil)
			r.Header.Set("Authorization", "Bearer secret")
			w := httptest.NewRecorder()
			if instance.Handler().ServeHTTP(w, r); w.Code != http.StatusOK || strings.Count(w.Body.String(), `"uid"`) != 4 {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
		})
	}
	indexed, scanned := allocations("fieldSelector=spec.color%3Dcolor-7"), allocations("labelSelector=color%3Dcolor-7")
	if indexed > scanned/2 {
		t.Errorf("a list of 4 of %d objects takes %.0f allocations by a field, %.0f by a label that has no index", objects, indexed, scanned)
	}
	t.Logf("%.0f allocations, %.0f by a label", indexed, scanned)
}
