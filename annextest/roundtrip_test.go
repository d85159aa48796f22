package annextest

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	markedv1beta1 "github.com/annexapi/annex/internal/testing/shop/marked/v1beta1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
)

type (
	toHub   = func(in *v1beta1.Widget, hub *v1.Widget) error
	fromHub = func(hub *v1.Widget, out *v1beta1.Widget) error
)

func widgetServer(to toHub, from fromHub, change ...func(*annex.KindBuilder[v1.Widget])) annex.Server {
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Versions(annex.Version(v1beta1.API, to, from))
	for _, c := range change {
		c(kind)
	}
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
}

// numbered sets parts that v1beta1 can represent.
var numbered = Fuzz(func(spec *v1beta1.WidgetSpec, r *rand.Rand) {
	for i := range spec.Parts {
		spec.Parts[i] = fmt.Sprintf("%s=%d", spec.Parts[i], r.Int31())
	}
})

const beta = "widgets.shop.example.com/v1beta1"

func problems(t *testing.T, server annex.Server, opts ...Option) []string {
	t.Helper()
	o := compile(opts)
	ways, err := waysOf(server, o)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, w := range ways {
		all = append(all, w.problems()...)
	}
	return append(all, o.mistakes()...)
}

func TestRoundTrip_loss_namesField(t *testing.T) {
	small := func(k *annex.KindBuilder[v1.Widget]) {
		k.Validate(func(_ context.Context, w *v1.Widget) field.ErrorList {
			if w.Spec.Size == "refused" {
				return field.ErrorList{field.Invalid(field.NewPath("spec", "size"), w.Spec.Size, "refused")}
			}
			return nil
		})
	}
	refused := Fuzz(func(spec *v1.WidgetSpec, r *rand.Rand) {
		if r.Intn(2) == 0 {
			spec.Size = "refused"
		}
	})
	dropOptions := func(hub *v1.Widget, out *v1beta1.Widget) error {
		err := v1beta1.WidgetFromHub(hub, out)
		out.Spec.Options = nil
		return err
	}
	refuseSome := func(hub *v1.Widget, out *v1beta1.Widget) error {
		if hub.Spec.Size == "refused" {
			return errors.New("cannot say refused")
		}
		return v1beta1.WidgetFromHub(hub, out)
	}
	for name, c := range map[string]struct {
		server annex.Server
		opts   []Option
		want   []string
	}{
		"nothing is lost": {
			server: widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub),
			opts:   []Option{numbered},
		},
		"a map": {
			server: widgetServer(v1beta1.WidgetToHub, dropOptions),
			opts:   []Option{numbered},
			want: []string{
				`to v1 and back: spec.options is lost or changed (spec.options: {"`,
				`from v1 and back: spec.options is lost or changed (spec.options: {"`,
			},
		},
		"a declared map": {
			server: widgetServer(v1beta1.WidgetToHub, dropOptions),
			opts:   []Option{numbered, KnownLoss(beta, "spec.options", "no client used them")},
		},
		"a number in a list": {
			server: widgetServer(v1beta1.WidgetToHub, func(hub *v1.Widget, out *v1beta1.Widget) error {
				hub = hub.DeepCopy()
				for i := range hub.Spec.Parts {
					hub.Spec.Parts[i].Count /= 2
				}
				return v1beta1.WidgetFromHub(hub, out)
			}),
			opts: []Option{numbered, KnownLoss(beta, "spec.parts[*]", "odd")},
		},
		"a default that the hub has not": {
			server: widgetServer(v1beta1.WidgetToHub, func(hub *v1.Widget, out *v1beta1.Widget) error {
				err := v1beta1.WidgetFromHub(hub, out)
				if out.Spec.Size == "medium" {
					out.Spec.Size = ""
				}
				return err
			}),
			opts: []Option{numbered, Fuzz(func(spec *v1.WidgetSpec, _ *rand.Rand) { spec.Size = "medium" })},
			want: []string{`from v1 and back: spec.size is lost or changed (spec.size: "medium" became "small")`},
		},
		"a field that is never tested": {
			server: widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub),
			want: []string{`to v1 and back: the conversion rejected all random objects with spec.parts[*], so the field is not tested: ` +
				`pass a function to annextest.Fuzz that creates valid objects. The last error: cannot be converted to version "v1": ` +
				`part "w`},
		},
		"a valid object that cannot be read": {
			server: widgetServer(v1beta1.WidgetToHub, refuseSome),
			opts:   []Option{numbered, refused},
			want:   []string{`from v1 and back: a valid object cannot be read in this version: cannot say refused ({"metadata":`},
		},
		"an invalid one may be refused": {
			server: widgetServer(v1beta1.WidgetToHub, refuseSome, small),
			opts:   []Option{numbered, refused},
		},
		"what comes from the hub is refused by it": {
			server: widgetServer(func(in *v1beta1.Widget, hub *v1.Widget) error {
				if in.Spec.Replicas == nil {
					return errors.New("how many?")
				}
				return v1beta1.WidgetToHub(in, hub)
			}, v1beta1.WidgetFromHub),
			opts: []Option{numbered},
			want: []string{`from v1 and back: the conversion to the hub rejects an object of the conversion from the hub: cannot be converted to ` +
				`version "v1": how many?`},
		},
		"declared losses that are none": {
			server: widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub),
			opts:   []Option{numbered, KnownLoss(beta, "spec.partz", "a typo"), KnownLoss(beta, "spec.size", "")},
			want: []string{
				`KnownLoss("widgets.shop.example.com/v1beta1", "spec.partz"): the field is not lost: remove the option`,
				`KnownLoss("widgets.shop.example.com/v1beta1", "spec.size"): the reason is missing`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, c.server, c.opts...)
			for i := range max(len(got), len(c.want)) {
				switch {
				case i >= len(c.want):
					t.Errorf("unexpected: %s", got[i])
				case i >= len(got):
					t.Errorf("not found: %s", c.want[i])
				case !strings.HasPrefix(got[i], c.want[i]):
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}

func TestRoundTrip_sameSeed_findsSame(t *testing.T) {
	lossy := widgetServer(v1beta1.WidgetToHub, func(hub *v1.Widget, out *v1beta1.Widget) error { return nil })
	once, again := problems(t, lossy, numbered, Seed(7)), problems(t, lossy, numbered, Seed(7))
	if len(once) == 0 || strings.Join(once, "\n") != strings.Join(again, "\n") {
		t.Errorf("once:\n%s\nagain:\n%s", strings.Join(once, "\n"), strings.Join(again, "\n"))
	}
}

func TestRoundTrip_shop(t *testing.T) {
	RoundTrip(t, widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub), numbered)
}

func TestGoldenObjects_shop(t *testing.T) {
	GoldenObjects(t, widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub), "testdata/objects", numbered)
}

// goldenProblems returns the errors of GoldenObjects.
func goldenProblems(t *testing.T, server annex.Server, dir string, update bool) []string {
	t.Helper()
	definition, scheme, err := compiled(server)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	goldens := goldensOf(definition, scheme, dir, compile([]Option{numbered}))
	for _, g := range goldens {
		if err := g.check(update); err != nil {
			all = append(all, err.Error())
		}
	}
	if err := strayGoldens(dir, goldens); err != nil {
		all = append(all, strings.Split(err.Error(), "\n")...)
	}
	return all
}

func TestGoldenObjects_unreadable(t *testing.T) {
	server := widgetServer(v1beta1.WidgetToHub, v1beta1.WidgetFromHub)
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.example.com/v1beta1/widgets.json")
	replace := func(old, with string) func() {
		return func() {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), old) {
				t.Fatalf("no %s in %s", old, data)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(data), old, with, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(step string, server annex.Server, update bool, want string) {
		t.Helper()
		got := strings.Join(goldenProblems(t, server, dir, update), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", step, got, want)
		}
	}
	expect("no files", server, false, "no stored object "+file+": run the test once with UPDATE=1")
	expect("write them", server, true, "")
	expect("read them", server, false, "")

	replace(`"phase": `, `"fase": `)()
	expect(
		"a field is renamed",
		server,
		false,
		`widgets.json: the server does not read this stored object as it was written: json: unknown field "fase"`,
	)
	expect("an update does not hide it", server, true, `unknown field "fase"`)
	replace(`"fase": `, `"phase": `)()
	expect("and back", server, false, "")

	replace(`"replicas": `, `"replicas": "`)()
	expect("no JSON", server, false, "widgets.json: the server does not read this stored object as it was written: ")
	replace(`"replicas": "`, `"replicas": `)()

	other := widgetServer(func(in *v1beta1.Widget, hub *v1.Widget) error {
		err := v1beta1.WidgetToHub(in, hub)
		hub.Spec.Size = "large"
		return err
	}, v1beta1.WidgetFromHub)
	expect("another conversion", other, false, `widgets.json is read differently now`)
	broken := widgetServer(func(*v1beta1.Widget, *v1.Widget) error { return errors.New("no longer") }, v1beta1.WidgetFromHub)
	expect("no conversion", broken, false, "can no longer read this stored object: conversion to v1: ")
	gone := annex.Server{
		Name:   "shop",
		Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)}}},
	}
	expect("no version", gone, false, "the server does not have this kind and version")

	replace(`"replicas": `, `"replicas": 7, "x": `)()
	expect("an unknown field", server, true, `unknown field "x"`)
	drop(t, file, "replicas", "phase")
	expect("new fields", server, false, "widgets.json has no values for the new fields spec.replicas, status.phase, status.replicas: "+
		"run the test with UPDATE=1")
	replace(`"selector": `, `"selector": "kept", "phase": `)()
	expect("add them", server, true, "")
	expect("and they are there", server, false, "")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"selector": "kept"`) || strings.Count(string(data), `"replicas"`) != 2 {
		t.Errorf("an update changed what was stored, or added nothing:\n%s", data)
	}
}

// drop removes the lines of the given fields.
func drop(t *testing.T, file string, fields ...string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, line := range strings.Split(string(data), "\n") {
		if !slices.ContainsFunc(fields, func(f string) bool { return strings.Contains(line, `"`+f+`":`) }) {
			kept = append(kept, line)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Join(kept, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGeneral(t *testing.T) {
	for path, want := range map[string]string{
		"":                                   "",
		"spec":                               "spec",
		"spec.parts[12].name":                "spec.parts[*].name",
		`spec.options["a.b/c]\"[x"].deep[0]`: "spec.options[*].deep[*]",
	} {
		if got := general(path); got != want {
			t.Errorf("general(%q) = %q, want %q", path, got, want)
		}
	}
}

// A version need not represent values that the hub's markers do not allow.
func TestRoundTrip_markers_areValidation(t *testing.T) {
	refuse := func(hub *markedv1.Crate, out *markedv1beta1.Crate) error {
		if hub.Spec.Boxes != nil && (*hub.Spec.Boxes < 1 || *hub.Spec.Boxes > 9) {
			return errors.New("too many")
		}
		return markedv1beta1.FromHub(hub, out)
	}
	some := Fuzz(func(spec *markedv1.CrateSpec, r *rand.Rand) {
		*spec = markedv1.CrateSpec{Size: "small", Owner: "me", Code: "abc"}
		boxes := int32(r.Intn(20))
		spec.Boxes = &boxes
	})
	kind := annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API).
		Versions(annex.Version(markedv1beta1.API, markedv1beta1.ToHub, refuse))
	server := annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{kind}}}}
	for _, problem := range problems(t, server, some) {
		if strings.Contains(problem, "a valid object cannot be read") {
			t.Error(problem)
		}
	}
}
