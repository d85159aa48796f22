package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/annexapi/annex"
	legacyv1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

const (
	gizmosPath = "/apis/legacy.example.com/v1/namespaces/default/gizmos"
	oldPath    = "/apis/old.example.com/v1/namespaces/default/widgets"
)

func gizmo(name string, f ...map[string]any) map[string]any {
	obj := object("v1", "Gizmo", name, f...)
	obj["apiVersion"] = "legacy.example.com/v1"
	return obj
}

// legacy is the server before the move: it only has Gizmos.
func legacy() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{
		Name:  "legacy.example.com",
		Kinds: []annex.Kind{annex.KindOf[legacyv1.Gizmo, legacyv1.GizmoList]("gizmos", legacyv1.API)},
	}}}
}

// movedWidgets are Gizmos that have become Widgets of another group, and are still served as Gizmos.
func movedWidgets() *annex.KindBuilder[v1.Widget] {
	return widgets().
		AlsoServedAs("legacy.example.com", "gizmos", annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub).
			Deprecated("legacy.example.com/v1 Gizmo is deprecated; use shop.example.com/v1 Widget")).
		StoredUnder("legacy.example.com", "gizmos").
		StoredAs("legacy.example.com/v1")
}

func moved() annex.Server { return only(movedWidgets()) }

// same checks that two responses show the same object, in different versions.
func same(t *testing.T, a, b *answer) {
	t.Helper()
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "labels",
		"managedFields", "deletionTimestamp"} {
		if got, want := a.str("metadata", field), b.str("metadata", field); got != want {
			t.Errorf("metadata.%s of %s is %s, of %s %s", field, a.asked, got, b.asked, want)
		}
	}
}

func TestAlsoServedAs_moveAndBack(t *testing.T) {
	t.Parallel()
	for name, storedAs := range map[string]string{"stored as before": "legacy.example.com/v1", "stored as it is now": "v1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
			instance, stop := run(t, legacy(), options)
			c := clientOf(t, instance)
			before := c.post(gizmosPath, gizmo("old", spec(fields{"pieces": []string{"leg=4"}, "replicas": 2}),
				metadata(fields{"labels": fields{"a": "b"}}))).
				want(http.StatusCreated)
			c.post(gizmosPath, gizmo("gone")).want(http.StatusCreated)
			stop()

			instance, stop = run(t, only(movedWidgets().StoredAs(storedAs)), options)
			c = clientOf(t, instance)
			asGizmo, asWidget := c.get(gizmosPath+"/old").want(http.StatusOK), c.get(widgetsPath+"/old").want(http.StatusOK)
			same(t, asGizmo, before)
			same(t, asWidget, before)
			if w := asWidget.widget(); w.APIVersion != "shop.example.com/v1" ||
				!reflect.DeepEqual(w.Spec.Parts, []v1.Part{{Name: "leg", Count: 4}}) ||
				w.Spec.Size != "large" {
				t.Errorf("as a widget: %s", asWidget.raw)
			}
			if asGizmo.str("kind") != "Gizmo" || asGizmo.str("apiVersion") != "legacy.example.com/v1" ||
				asGizmo.str("spec", "pieces") != "[leg=4]" {
				t.Errorf("as a gizmo: %s", asGizmo.raw)
			}
			c.create("new", spec(fields{"parts": []fields{{"name": "top", "count": 1}}}))
			c.patch(mergePatch, gizmosPath+"/old", `{"spec":{"options":{"by":"gizmo"}}}`).want(http.StatusOK)
			c.patch(mergePatch, widgetsPath+"/old", `{"spec":{"replicas":3}}`).want(http.StatusOK)
			c.delete(widgetsPath+"/gone", nil).want(http.StatusOK)
			after := c.get(gizmosPath + "/old")
			if storedAs == "v1" {
				c.patch(mergePatch, widgetsPath+"/new", `{"metadata":{"labels":{"x":"y"}}}`).want(http.StatusOK)
			}
			stop()

			if storedAs == "v1" {
				// There is no way back: the old server cannot read the stored objects.
				if _, err := annex.New(
					t.Context(),
					legacy(),
					placed(t, options),
				); err == nil ||
					!strings.Contains(err.Error(), "2 gizmos.legacy.example.com as shop.example.com/v1 Widget") {
					t.Errorf("going back: %v", err)
				}
				unreadable := options
				unreadable.ServeDespiteUndecodable = true
				instance, stop = run(t, legacy(), unreadable)
				clientOf(t, instance).get(gizmosPath + "/new").want(http.StatusInternalServerError)
				stop()
				instance, _ = run(t, only(movedWidgets().StoredAs(storedAs)), options)
				c = clientOf(t, instance)
				same(t, c.get(gizmosPath+"/old"), after)
				return
			}
			instance, _ = run(t, legacy(), options)
			c = clientOf(t, instance)
			if got := c.get(gizmosPath).names(); !slices.Equal(got, []string{"new", "old"}) {
				t.Errorf("after going back there are %v", got)
			}
			back := c.get(gizmosPath + "/old").want(http.StatusOK)
			same(t, back, after)
			if back.str("spec", "replicas")+back.str("spec", "options", "by") != "3gizmo" {
				t.Errorf("after going back: %s", back.raw)
			}
			if got := c.get(gizmosPath+"/new").str("spec", "pieces"); got != "[top=1]" {
				t.Errorf("made by the newer server: pieces %s", got)
			}
			c.patch(mergePatch, gizmosPath+"/old", `{"spec":{"replicas":4}}`).want(http.StatusOK)
		})
	}
}

func TestAlsoServedAs_sameObjects(t *testing.T) {
	t.Parallel()
	c := start(t, moved())
	asWidgets, asBeta, asGizmos := c.watch(widgetsPath+"?watch=1"), c.watch(widgetsBetaPath+"?watch=1"), c.watch(gizmosPath+"?watch=1")
	events := func(want, replicas string) {
		t.Helper()
		var revisions []string
		for _, w := range []*stream{asWidgets, asBeta, asGizmos} {
			e := w.want(want)
			if text(e.Object, "spec", "replicas") != replicas {
				t.Errorf("%s: %v", w.asked, e.Object)
			}
			revisions = append(revisions, text(e.Object, "metadata", "resourceVersion"))
			if w == asGizmos && text(e.Object, "apiVersion")+text(e.Object, "kind") != "legacy.example.com/v1Gizmo" {
				t.Errorf("%s: %v", w.asked, e.Object)
			}
		}
		if len(slices.Compact(revisions)) != 1 {
			t.Errorf("one event at %v", revisions)
		}
	}
	made := c.post(gizmosPath, gizmo("a", spec(fields{"replicas": 1}))).want(http.StatusCreated)
	events("ADDED a", "1")
	same(t, c.get(widgetsPath+"/a"), made)
	same(t, c.get(widgetsBetaPath+"/a"), made)

	// An update by either group, with the resource version from the other.
	obj := c.get(widgetsPath + "/a").object()
	obj["spec"].(map[string]any)["replicas"] = 2
	c.put(widgetsPath+"/a", obj).want(http.StatusOK)
	events("MODIFIED a", "2")
	stale := made.object()
	c.put(gizmosPath+"/a", stale).refused(http.StatusConflict, metav1.StatusReasonConflict, `gizmos.legacy.example.com "a"`)
	obj = c.get(gizmosPath + "/a").object()
	obj["spec"].(map[string]any)["replicas"] = 3
	c.put(gizmosPath+"/a", obj).want(http.StatusOK)
	events("MODIFIED a", "3")
	for _, patch := range []string{mergePatch, strategicType} {
		c.patch(patch, gizmosPath+"/a", `{"metadata":{"finalizers":["example.com/hold"]}}`).want(http.StatusOK)
	}
	events("MODIFIED a", "3")

	c.post(gizmosPath, gizmo("a")).
		refused(http.StatusConflict, metav1.StatusReasonAlreadyExists, `gizmos.legacy.example.com "a" already exists`)
	c.post(widgetsPath, widget("a")).
		refused(http.StatusConflict, metav1.StatusReasonAlreadyExists, `widgets.shop.example.com "a" already exists`)
	c.get(gizmosPath+"/b").refused(http.StatusNotFound, metav1.StatusReasonNotFound, `gizmos.legacy.example.com "b" not found`)
	c.post(gizmosPath, widget("c")).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
	c.post(widgetsPath, gizmo("c")).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
	c.post(gizmosPath+"?fieldValidation=Strict", gizmo("c", spec(fields{"parts": []fields{}}))).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, `Gizmo in version "v1" cannot be handled as a Gizmo: strict decoding `+
			`error: unknown field "spec.parts"`)

	// A delete that begins in one group ends in the other.
	c.delete(gizmosPath+"/a", nil).want(http.StatusOK)
	events("MODIFIED a", "3")
	same(t, c.get(widgetsPath+"/a"), c.get(gizmosPath+"/a"))
	c.patch(jsonPatch, widgetsPath+"/a", `[{"op":"remove","path":"/metadata/finalizers"}]`).want(http.StatusOK)
	events("DELETED a", "3")
	c.get(gizmosPath + "/a").want(http.StatusNotFound)

	c.create("x")
	c.post(gizmosPath, gizmo("y")).want(http.StatusCreated)
	if a, b := c.get(widgetsPath).names(), c.get(gizmosPath).names(); !slices.Equal(a, b) || len(a) != 2 {
		t.Errorf("widgets %v, gizmos %v", a, b)
	}
	if got := c.get(gizmosPath); got.str("kind")+got.str("apiVersion") != "GizmoListlegacy.example.com/v1" {
		t.Errorf("list: %s", got.raw)
	}
	c.do(http.MethodDelete, gizmosPath, nil).want(http.StatusOK)
	if got := c.get(widgetsPath).names(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestAlsoServedAs_allEndpoints(t *testing.T) {
	t.Parallel()
	c := start(t, moved())
	c.post(gizmosPath, gizmo("a", spec(fields{"replicas": 1, "size": "small"}), status(fields{"phase": "Early"}))).want(http.StatusCreated)
	c.create("b", spec(fields{"size": "large"}), metadata(fields{"labels": fields{"l": "b"}}))

	// The status subresource
	if got := c.get(gizmosPath+"/a").str("status", "phase"); got != "" {
		t.Errorf("a create has set the status: %s", got)
	}
	c.patch(mergePatch, gizmosPath+"/a/status", `{"status":{"phase":"Ready"},"spec":{"replicas":9}}`).want(http.StatusOK)
	if w := c.widget("a"); w.Status.Phase != "Ready" || *w.Spec.Replicas != 1 || w.Generation != 1 {
		t.Errorf("after the status: %+v", w)
	}
	c.patch(mergePatch, gizmosPath+"/a/status", `{"status":{"phase":"Impossible"}}`).
		refused(422, metav1.StatusReasonInvalid, `Gizmo.legacy.example.com "a" is invalid: status.phase`)

	// The scale subresource
	c.patch(mergePatch, gizmosPath+"/a/scale?fieldManager=scaler", `{"spec":{"replicas":5}}`).want(http.StatusOK)
	if got := c.get(widgetsPath+"/a/scale").str("spec", "replicas"); got != "5" {
		t.Errorf("replicas %s", got)
	}
	entry := ""
	for _, m := range c.widget("a").ManagedFields {
		if m.Manager == "scaler" {
			entry = m.APIVersion + " " + m.FieldsV1.GetRawString()
		}
	}
	if entry != `legacy.example.com/v1 {"f:spec":{"f:replicas":{}}}` {
		t.Errorf("the scaler's entry is %s", entry)
	}

	// Validation is the hub's, and uses the names that the client knows.
	c.post(gizmosPath, gizmo("c", spec(fields{"size": "vast"}))).
		refused(422, metav1.StatusReasonInvalid, `Gizmo.legacy.example.com "c" is invalid: spec.size`)
	c.post(gizmosPath, gizmo("c", spec(fields{"pieces": []string{"leg"}}))).
		refused(400, metav1.StatusReasonBadRequest, `piece "leg": want name=count`)

	// Selectors
	for path, want := range map[string]string{
		"?fieldSelector=spec.size%3Dsmall":            "a",
		"?labelSelector=l%3Db":                        "b",
		"?fieldSelector=metadata.name%3Db":            "b",
		"?fieldSelector=metadata.namespace%3Ddefault": "a b",
		"?limit=1": "a",
	} {
		if got := strings.Join(c.get(gizmosPath+path).want(200).names(), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	c.get(gizmosPath+"?fieldSelector=spec.nothing%3Da").refused(400, metav1.StatusReasonBadRequest, "field label not supported: spec.nothing")
	c.watch(gizmosPath + "?watch=1&fieldSelector=spec.size%3Dsmall").want("ADDED a")

	// Tables and metadata
	table := c.get(gizmosPath, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").want(200)
	table.contains(`"name":"Size"`, `"cells":["a","small",5,`, `"kind":"PartialObjectMetadata"`)
	partial := c.get(gizmosPath+"/a", "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").want(200)
	if partial.str("kind")+partial.str("metadata", "name") != "PartialObjectMetadataa" {
		t.Errorf("metadata: %s", partial.raw)
	}
	if got := c.get(gizmosPath + "/a").
		warnings(); !slices.Equal(
		got,
		[]string{"legacy.example.com/v1 Gizmo is deprecated; use shop.example.com/v1 Widget"},
	) {
		t.Errorf("warnings: %v", got)
	}
	if got := c.get(widgetsPath + "/a").warnings(); len(got) != 0 {
		t.Errorf("warnings of the other group: %v", got)
	}
}

func TestAlsoServedAs_fieldManagers(t *testing.T) {
	t.Parallel()
	c := start(t, moved())
	c.apply(gizmosPath+"/a", "g", gizmo("a", spec(fields{"replicas": 1, "pieces": []string{"leg=4"}, "options": fields{"g": "1"}}))).
		want(http.StatusCreated)
	c.apply(widgetsPath+"/a", "w", widget("a", spec(fields{"options": fields{"w": "1"}}))).want(http.StatusOK)
	entries := func() string {
		t.Helper()
		var all []string
		for _, m := range c.widget("a").ManagedFields {
			all = append(all, fmt.Sprintf("%s %s %s %s", m.Manager, m.Operation, m.APIVersion, m.FieldsV1.GetRawString()))
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	if got, want := entries(), strings.Join([]string{
		`g Apply legacy.example.com/v1 {"f:spec":{"f:options":{"f:g":{}},"f:pieces":{"v:\"leg=4\"":{}},"f:replicas":{}}}`,
		`w Apply shop.example.com/v1 {"f:spec":{"f:options":{"f:w":{}}}}`,
	}, "\n"); got != want {
		t.Errorf("managed fields\n%s\nwant\n%s", got, want)
	}

	// A conflict is found across the groups, and names the other manager.
	c.apply(widgetsPath+"/a", "w", widget("a", spec(fields{"replicas": 2, "options": fields{"w": "1"}}))).
		refused(http.StatusConflict, metav1.StatusReasonConflict, `conflict with "g": .spec.replicas`)
	c.apply(widgetsPath+"/a", "w", widget("a", spec(fields{"replicas": 2, "options": fields{"w": "1"}})), "force=true").want(http.StatusOK)
	// Fields that one manager gives up are removed, the fields of the other stay.
	c.apply(gizmosPath+"/a", "g", gizmo("a", spec(fields{"pieces": []string{"top=1"}}))).want(http.StatusOK)
	w := c.widget("a")
	if *w.Spec.Replicas != 2 || !reflect.DeepEqual(w.Spec.Options, map[string]string{"w": "1"}) ||
		!reflect.DeepEqual(w.Spec.Parts, []v1.Part{{Name: "top", Count: 1}}) {
		t.Errorf("applied: %+v", w.Spec)
	}
	// An update through either group keeps the entries of the other.
	c.patch(mergePatch, gizmosPath+"/a?fieldManager=p", `{"metadata":{"labels":{"x":"y"}}}`).want(http.StatusOK)
	c.patch(mergePatch, widgetsPath+"/a?fieldManager=q", `{"metadata":{"labels":{"z":"y"}}}`).want(http.StatusOK)
	if got, want := entries(), strings.Join([]string{
		`g Apply legacy.example.com/v1 {"f:spec":{"f:pieces":{"v:\"top=1\"":{}}}}`,
		`p Update legacy.example.com/v1 {"f:metadata":{"f:labels":{".":{},"f:x":{}}}}`,
		`q Update shop.example.com/v1 {"f:metadata":{"f:labels":{"f:z":{}}}}`,
		`w Apply shop.example.com/v1 {"f:spec":{"f:options":{"f:w":{}},"f:replicas":{}}}`,
	}, "\n"); got != want {
		t.Errorf("managed fields\n%s\nwant\n%s", got, want)
	}
	c.apply(gizmosPath+"/a/status", "s", gizmo("a", status(fields{"phase": "Ready"}))).want(http.StatusOK)
	c.apply(gizmosPath+"/b", "g", gizmo("b", spec(fields{"replicas": 1}), status(fields{"phase": "Early"}))).want(http.StatusCreated)
	if got := c.widget("b"); got.Status.Phase != "" || strings.Contains(fmt.Sprint(got.ManagedFields), "f:status") {
		t.Errorf("an apply has set the status: %+v", got)
	}
}

func TestAlsoServedAs_hooks(t *testing.T) {
	t.Parallel()
	made := 0
	c := start(t, only(movedWidgets().
		AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			made++
			gizmos, err := annex.ListerFor[legacyv1.Gizmo](env)
			return func(ctx context.Context, r annex.Request[v1.Widget]) error {
				all, err := gizmos.List(ctx, "", labels.Everything())
				if err != nil {
					return err
				}
				if r.Operation == annex.Create && len(all) > 1 {
					return errors.New("there are enough")
				}
				return nil
			}, err
		}).
		Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Object.Spec.Options == nil {
				r.Object.Spec.Options = map[string]string{}
			}
			r.Object.Spec.Options["mutated"] = r.Resource.String()
			return nil
		})))
	if made != 1 {
		t.Errorf("the hook was made %d times", made)
	}
	if got := c.post(gizmosPath, gizmo("a")).
		want(http.StatusCreated).
		str("spec", "options", "mutated"); got != "legacy.example.com/v1, Resource=gizmos" {
		t.Errorf("mutated: %q", got)
	}
	if got := c.create("b").Spec.Options["mutated"]; got != "shop.example.com/v1, Resource=widgets" {
		t.Errorf("mutated: %q", got)
	}
	testwait.Until(t, "the hook to see both", func() bool {
		return c.post(gizmosPath+"?dryRun=All", gizmo("c")).code == http.StatusForbidden
	})
	c.post(gizmosPath, gizmo("c")).
		refused(http.StatusForbidden, metav1.StatusReasonForbidden, `gizmos.legacy.example.com "c" is forbidden: there are enough`)
	c.post(widgetsPath, widget("c")).
		refused(http.StatusForbidden, metav1.StatusReasonForbidden, `widgets.shop.example.com "c" is forbidden: there are enough`)
}

func TestAlsoServedAs_discovery(t *testing.T) {
	t.Parallel()
	c := start(t, moved())
	resources := func(gv string) map[string]metav1.APIResource {
		var list metav1.APIResourceList
		decode(t, c.get("/apis/"+gv).want(200).raw, &list)
		all := map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			all[r.Name] = r
		}
		return all
	}
	widgets, gizmos := resources("shop.example.com/v1"), resources("legacy.example.com/v1")
	g := gizmos["gizmos"]
	if g.Kind != "Gizmo" || g.SingularName != "gizmo" || len(g.ShortNames)+len(g.Categories) > 0 ||
		!reflect.DeepEqual(g.Verbs, widgets["widgets"].Verbs) {
		t.Errorf("gizmos: %+v", g)
	}
	if g.StorageVersionHash == "" || g.StorageVersionHash != widgets["widgets"].StorageVersionHash {
		t.Errorf("storage version hashes %q and %q: they share one storage", g.StorageVersionHash, widgets["widgets"].StorageVersionHash)
	}
	for _, sub := range []string{"gizmos/status", "gizmos/scale"} {
		if _, ok := gizmos[sub]; !ok {
			t.Errorf("no %s", sub)
		}
	}
	c.get("/openapi/v3/apis/legacy.example.com/v1").
		want(200).
		contains(`"com.example.legacy.v1.Gizmo"`, `/apis/legacy.example.com/v1/namespaces/{namespace}/gizmos/{name}/status`, `"kind":"Gizmo"`)
	c.get("/openapi/v2").want(200).contains(`"com.example.legacy.v1.GizmoList"`, `"com.example.shop.v1.WidgetList"`)
}

func TestAlsoServedAs_namespaceDeletion(t *testing.T) {
	t.Parallel()
	c := start(t, moved())
	c.namespace("n")
	in := func(path string) string { return strings.Replace(path, "/default/", "/n/", 1) }
	c.post(in(gizmosPath), gizmo("a", metadata(fields{"finalizers": []string{"example.com/hold"}}))).want(http.StatusCreated)
	c.post(in(widgetsPath), widget("b")).want(http.StatusCreated)
	c.delete("/api/v1/namespaces/n", nil).want(http.StatusOK)
	testwait.Until(t, "the namespace to say what is left", func() bool {
		return strings.Contains(string(c.get("/api/v1/namespaces/n").raw), "widgets.shop.example.com has 1 resource instances")
	})
	c.post(in(gizmosPath), gizmo("c")).
		refused(http.StatusForbidden, metav1.StatusReasonForbidden, `gizmos.legacy.example.com "c" is forbidden`, "it is being terminated")
	c.patch(jsonPatch, in(gizmosPath)+"/a", `[{"op":"remove","path":"/metadata/finalizers"}]`).want(http.StatusOK)
	testwait.Until(t, "the namespace to go", func() bool { return c.get("/api/v1/namespaces/n").code == http.StatusNotFound })
}

// oldWidgets moves Go types from a group to another without any change.
func oldWidgets() *annex.KindBuilder[v1.Widget] {
	return widgets().
		AlsoServedAs("old.example.com", "widgets",
			annex.SameVersion[v1.Widget, v1.Widget]("v1").Deprecated("moved to shop.example.com"),
			annex.SameVersion[v1beta1.Widget, v1.Widget]("v1beta1")).
		StoredUnder("old.example.com", "widgets").
		StoredAs("old.example.com/v1")
}

func TestAlsoServedAs_sameGoType(t *testing.T) {
	t.Parallel()
	// The old group comes first, with another kind in it.
	server := annex.Server{Name: "shop", Groups: []annex.Group{
		{
			Name: "legacy.example.com", Kinds: []annex.Kind{annex.KindOf[legacyv1.Gizmo, legacyv1.GizmoList]("gizmos", legacyv1.API)},
		},
		{
			Name:  "shop.example.com",
			Kinds: []annex.Kind{oldWidgets().AlsoServedAs("legacy.example.com", "widgets", annex.SameVersion[v1.Widget, v1.Widget]("v1"))},
		},
	}}
	c := start(t, server)
	old := func(name string, f ...map[string]any) map[string]any {
		obj := widget(name, f...)
		obj["apiVersion"] = "old.example.com/v1"
		return obj
	}
	made := c.post(oldPath, old("a", spec(fields{"parts": []fields{{"name": "leg", "count": 4}}}))).want(http.StatusCreated)
	if made.str("apiVersion") != "old.example.com/v1" || made.str("spec", "size") != "medium" {
		t.Errorf("made: %s", made.raw)
	}
	if got := made.warnings(); !slices.Equal(got, []string{"moved to shop.example.com"}) {
		t.Errorf("warnings: %v", got)
	}
	for path, want := range map[string]string{
		widgetsPath:     "shop.example.com/v1",
		widgetsBetaPath: "shop.example.com/v1beta1",
		oldPath:         "old.example.com/v1",
		strings.Replace(oldPath, "v1", "v1beta1", 1):             "old.example.com/v1beta1",
		"/apis/legacy.example.com/v1/namespaces/default/widgets": "legacy.example.com/v1",
	} {
		got := c.get(path + "/a").want(200)
		same(t, got, made)
		if got.str("apiVersion") != want || got.str("kind") != "Widget" {
			t.Errorf("%s: %s", path, got.raw)
		}
		if list := c.get(path).want(200); list.str("apiVersion") != want || list.str("kind") != "WidgetList" {
			t.Errorf("%s: %s", path, list.raw)
		}
		if e := c.watch(path + "?watch=1").want("ADDED a"); text(e.Object, "apiVersion") != want {
			t.Errorf("%s: %v", path, e)
		}
		c.patch(mergePatch, path+"/a?fieldManager="+strings.ReplaceAll(want, "/", "-"), `{"metadata":{"labels":{"`+want+`":"x"}}}`).want(200)
		c.post(path, map[string]any{"apiVersion": want, "kind": "Widget", "metadata": fields{"name": "bad"}, "spec": fields{"size": "vast"}}).
			refused(422, metav1.StatusReasonInvalid, "Widget."+want[:strings.Index(want, "/")]+` "bad" is invalid`)
		made = c.get(path + "/a")
	}
	versions := map[string]bool{}
	for _, m := range c.widget("a").ManagedFields {
		versions[m.APIVersion] = true
	}
	if len(versions) != 5 {
		t.Errorf("managed fields: %v", versions)
	}
	c.apply(oldPath+"/a", "m", old("a", spec(fields{"parts": []fields{{"name": "leg", "count": 5}}}))).
		refused(409, metav1.StatusReasonConflict, "spec.parts")
	c.get("/openapi/v3/apis/old.example.com/v1").want(200).contains(`"group":"old.example.com"`)
	// The first kind of that group is not affected.
	c.post(gizmosPath, gizmo("a")).want(http.StatusCreated)
	c.get(widgetsPath + "/a").want(200)
}

func TestStoredUnder_formerGroup_isReadable(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	instance, stop := run(t, legacy(), options)
	clientOf(t, instance).post(gizmosPath, gizmo("a", spec(fields{"pieces": []string{"leg=4"}}))).want(http.StatusCreated)
	stop()
	instance, stop = run(t, only(widgets().
		AlsoServedAs("legacy.example.com", "gizmos", annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub).Unserved()).
		StoredUnder("legacy.example.com", "gizmos")), options)
	c := clientOf(t, instance)
	c.get(gizmosPath).want(http.StatusNotFound)
	if got := c.get("/apis"); strings.Contains(string(got.raw), "legacy.example.com") {
		t.Errorf("groups: %s", got.raw)
	}
	if w := c.widget("a"); len(w.Spec.Parts) != 1 {
		t.Errorf("read: %+v", w)
	}
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"replicas":1}}`).want(200)
	stop()
	// Objects are now written in the new version, so the old one is no longer needed.
	instance, _ = run(t, only(widgets().StoredUnder("legacy.example.com", "gizmos")), options)
	if w := clientOf(t, instance).widget("a"); len(w.Spec.Parts) != 1 || *w.Spec.Replicas != 1 {
		t.Errorf("read: %+v", w)
	}
}

func TestAlsoServedAs_gracePeriod(t *testing.T) {
	t.Parallel()
	c := start(t, only(movedWidgets().GracePeriod(time.Hour).DeleteAfterGracePeriod()))
	c.post(gizmosPath, gizmo("a")).want(http.StatusCreated)
	c.create("b")
	for i, path := range []string{gizmosPath + "/a", widgetsPath + "/b"} {
		begun := c.delete(path, nil).want(http.StatusOK)
		if begun.str("metadata", "deletionGracePeriodSeconds") != "3600" || begun.str("kind") != []string{"Gizmo", "Widget"}[i] {
			t.Errorf("%s: %s", path, begun.raw)
		}
	}
	// Shortened in the other group.
	for _, path := range []string{widgetsPath + "/a", gizmosPath + "/b"} {
		c.delete(path, fields{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1}).want(http.StatusOK)
		testwait.Until(t, "the object to go", func() bool { return c.get(path).code == http.StatusNotFound })
	}
}

func TestAlsoServedAs_encryption(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	rule := func(resources string) string {
		file := filepath.Join(t.TempDir(), "encryption.yaml")
		writeFile(t, file, strings.Replace(encryptionRule(resources, keyed("aescbc", "key1", secret1)), "'", "", 2))
		return file
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir(), EncryptionConfigFile: rule("gizmos.legacy.example.com")}
	instance, stop := run(t, legacy(), options)
	clientOf(t, instance).post(gizmosPath, gizmo("a")).want(http.StatusCreated)
	stop()
	// Under its new name the kind would not be encrypted any more.
	if instance, err := annex.New(t.Context(), moved(), options); err == nil {
		instance.Close()
		t.Fatal("the server started without a key for what is stored")
	} else if !strings.Contains(err.Error(), "widgets.shop.example.com") {
		t.Errorf("refused: %v", err)
	}
	options.EncryptionConfigFile = rule("gizmos.legacy.example.com, widgets.shop.example.com")
	instance, stop = run(t, moved(), options)
	c := clientOf(t, instance)
	c.widget("a")
	c.create("b")
	stop()
	instance, _ = run(t, legacy(), options)
	if got := clientOf(t, instance).get(gizmosPath).names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("after going back there are %v", got)
	}
}

func TestAlsoServedAs_virtualKind(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	rows := map[string]v1.Widget{}
	c := start(t, only(widgets().
		AlsoServedAs("legacy.example.com", "gizmos", annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub)).
		Virtual(annex.Source[v1.Widget]{
			Get: func(_ context.Context, _, name string) (*v1.Widget, error) {
				mu.Lock()
				defer mu.Unlock()
				if w, ok := rows[name]; ok {
					return w.DeepCopy(), nil
				}
				return nil, annex.ErrNotFound
			},
			List: func(context.Context) ([]v1.Widget, error) {
				mu.Lock()
				defer mu.Unlock()
				return slices.Collect(maps.Values(rows)), nil
			},
			Create: func(_ context.Context, w *v1.Widget) error {
				mu.Lock()
				defer mu.Unlock()
				rows[w.Name] = *w.DeepCopy()
				return nil
			},
			Update: func(_ context.Context, w, _ *v1.Widget) error {
				mu.Lock()
				defer mu.Unlock()
				rows[w.Name] = *w.DeepCopy()
				return nil
			},
			Poll: 10 * time.Millisecond,
		})))
	asWidgets, asGizmos := c.watch(widgetsPath+"?watch=1"), c.watch(gizmosPath+"?watch=1")
	made := c.post(gizmosPath, gizmo("a", spec(fields{"replicas": 1}))).want(http.StatusCreated)
	same(t, c.get(widgetsPath+"/a"), made)
	asWidgets.want("ADDED a")
	asGizmos.want("ADDED a")
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"replicas":2}}`).want(http.StatusOK)
	asWidgets.want("MODIFIED a")
	asGizmos.want("MODIFIED a")
	if got := c.get(gizmosPath+"/a").str("spec", "replicas"); got != "2" {
		t.Errorf("replicas %s", got)
	}
	for _, path := range []string{widgetsPath, gizmosPath} {
		c.delete(path+"/a", nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

func TestAlsoServedAs_storageTools(t *testing.T) {
	inPlainText(t)
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	instance, stop := run(t, only(movedWidgets().StoredAs("v1")), options)
	clientOf(t, instance).create("a", spec(fields{"parts": []fields{{"name": "leg", "count": 4}}}))
	stop()
	tool := func(args ...string) string {
		t.Helper()
		p := prepare(t)
		program := filepath.Join(filepath.Dir(p.Path), "moved")
		if err := os.Rename(p.Path, program); err != nil {
			t.Fatal(err)
		}
		p.Path, p.Args = program, append([]string{program, "storage", "--data-dir", options.DataDir}, args...)
		out, err := p.Output()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, &p.log)
		}
		return string(out)
	}
	for _, name := range []string{"gizmos.legacy.example.com", "widgets.shop.example.com"} {
		if out := tool(
			"dump",
			"--resource",
			name,
		); !strings.Contains(out, `"/legacy.example.com/gizmos/default/a"`) ||
			!strings.Contains(out, "shop.example.com/v1") {
			t.Errorf("dump of %s: %s", name, out)
		}
	}
	if out := tool("stats"); strings.Contains(out, "no kind of this server") || strings.Contains(out, "gizmos") {
		t.Errorf("stats: %s", out)
	}
	tool("verify")
	// The older server cannot read objects that the newer one has stored in its own version until they are rewritten.
	tool("rewrite", "--resource", "gizmos.legacy.example.com")
	instance, _ = run(t, legacy(), options)
	if got := clientOf(t, instance).get(gizmosPath+"/a").want(http.StatusOK).str("spec", "pieces"); got != "[leg=4]" {
		t.Errorf("pieces %s", got)
	}
}

func TestStoredUnder_objectsLeftBehind_isRejected(t *testing.T) {
	t.Parallel()
	options := placed(t, annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()})
	notOn(t, "files that are no kind's are strangers there", files.Name)
	notOn(t, "it is empty", memory.Name)
	instance, stop := run(t, legacy(), options)
	clientOf(t, instance).post(gizmosPath, gizmo("a")).want(http.StatusCreated)
	stop()
	forgotten := only(
		widgets().AlsoServedAs("legacy.example.com", "gizmos", annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub)),
	)
	instance, err := annex.New(t.Context(), forgotten, options)
	if err == nil {
		// A server that still waits for its storage rejects it when it has been reached.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err = instance.Run(ctx, nil)
	}
	want := `objects of widgets.shop.example.com are stored under gizmos.legacy.example.com, where no kind reads them: add ` +
		`StoredUnder("legacy.example.com", "gizmos") to the kind`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	instance, _ = run(t, moved(), options)
	clientOf(t, instance).widget("a")
}

func TestNew_sharedObjects_mistakes(t *testing.T) {
	gizmos := func() *annex.VersionBuilder[legacyv1.Gizmo, v1.Widget] {
		return annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub)
	}
	same := annex.SameVersion[v1.Widget, v1.Widget]
	also := func(group, resource string, versions ...annex.VersionOf[v1.Widget]) annex.Server {
		return only(widgets().AlsoServedAs(group, resource, versions...))
	}
	shelves := func() *annex.KindBuilder[v1.Shelf] {
		return annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped()
	}
	for name, test := range map[string]struct {
		server annex.Server
		want   []string
	}{
		"no versions": {also("legacy.example.com", "gizmos"), []string{`kind Widget (widgets.shop.example.com), ` +
			`AlsoServedAs("legacy.example.com", "gizmos"): no versions`}},
		"a bad group": {also("Legacy", "gizmos", same("v1")), []string{`group "Legacy": a lowercase RFC 1123 subdomain`}},
		"a group of Kubernetes": {also("rbac.authorization.k8s.io", "gizmos", same("v1")), []string{"reserved: every server serves " +
			"this group"}},
		"a bad resource":  {also("legacy.example.com", "Gizmos", gizmos()), []string{`resource "Gizmos"`}},
		"a bad version":   {also("legacy.example.com", "widgets", same("V1")), []string{`SameVersion("V1"): a DNS-1035 label`}},
		"a version twice": {also("legacy.example.com", "widgets", same("v1"), same("v1")), []string{"version v1: declared twice"}},
		"two kinds in one": {also("legacy.example.com", "gizmos", gizmos(), same("v2")), []string{"Go type v1.Widget must have the " +
			"name of the kind's first, Gizmo"}},
		"facts of another group": {also("old.example.com", "gizmos", gizmos()), []string{`generated for group "legacy.example.com"`}},
		"a missing conversion": {also("legacy.example.com", "gizmos", annex.Version[legacyv1.Gizmo, v1.Widget](legacyv1.API, nil, nil)),
			[]string{"missing conversion"}},
		"the same of another": {also("legacy.example.com", "gizmos", annex.SameVersion[legacyv1.Gizmo, v1.Widget]("v1")),
			[]string{`SameVersion("v1"): Go type v1.Gizmo belongs to no version of the kind`}},
		"defaults of their own": {also("legacy.example.com", "widgets", same("v1").Default(func(*v1.Widget) {})), []string{"defaults belong " +
			"to the Go type"}},
		"within the group": {also("shop.example.com", "gizmos", same("v2")), []string{"the group already serves these objects as widgets: " +
			"choose another group"}},
		"twice within a group": {only(widgets().AlsoServedAs("legacy.example.com", "a", same("v1")).AlsoServedAs("legacy.example.com", "b",
			same("v2"))), []string{"the group already serves these objects as b", "the group already serves these objects as a"}},
		"a resource that is there": {
			annex.Server{Name: "shop", Groups: []annex.Group{legacy().Groups[0], {Name: "shop.example.com", Kinds: []annex.Kind{movedWidgets()}}}},
			[]string{"duplicate resource: gizmos.legacy.example.com is served by kind Gizmo already", "duplicate kind",
				"StoredUnder(\"legacy.example.com\", \"gizmos\"): the objects of kind Gizmo are stored there"},
		},
		"the place of another": {only(shelves(), widgets().StoredUnder("shop.example.com", "shelves")),
			[]string{`StoredUnder("shop.example.com", "shelves"): the objects of kind Shelf are stored there`}},
		"a place that is taken": {only(widgets().StoredUnder("shop.example.com", "shelves"), shelves()),
			[]string{"kind Shelf (shelves.shop.example.com): its objects would be stored with those of kind Widget"}},
		"no place": {only(widgets().StoredUnder("", "namespaces")), []string{`StoredUnder("", "namespaces"): a lowercase ` +
			`RFC 1123 subdomain`}},
		"an unknown stored version": {only(movedWidgets().StoredAs("legacy.example.com/v2")), []string{`StoredAs("legacy.example.com/v2"): ` +
			`unknown version; declared versions: v1, v1beta1, legacy.example.com/v1`}},
		"a field that it lacks": {
			only(movedWidgets().SelectableField("spec.parts", func(*v1.Widget) string { return "" })),
			[]string{`AlsoServedAs("legacy.example.com", "gizmos"): selectable field "spec.parts" does not exist in version v1`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			instance, err := annex.New(t.Context(), test.server, annex.Options{Storage: memory.Storage()})
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in\n%v", want, err)
				}
			}
		})
	}
}
