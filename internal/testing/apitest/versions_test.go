package apitest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/store/embedded"
)

// strictBeta is the version v1beta1 with a validation of its own.
func strictBeta() *annex.VersionBuilder[v1beta1.Widget, v1.Widget] {
	return annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub).
		Validate(func(_ context.Context, w *v1beta1.Widget) field.ErrorList {
			var errs field.ErrorList
			for i, part := range w.Spec.Parts {
				if strings.HasPrefix(part, "bad") {
					errs = append(errs, field.Invalid(field.NewPath("spec", "parts").Index(i), part, "of "+w.Namespace+"/"+w.Name+" must not be bad"))
				}
			}
			return errs
		})
}

func TestVersions_oneObject(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{"v1", "v1beta1"} {
		t.Run("stored as "+stored, func(t *testing.T) {
			t.Parallel()
			c := startKind(t, widgets().StoredAs(stored))
			created := c.post(widgetsBetaPath,
				widgetBeta("w", spec(fields{"replicas": 2, "parts": []string{"leg=4", "top=1"}, "options": fields{"a": "1"}}),
					metadata(fields{"labels": fields{"x": "y"}}))).
				want(201)
			if got := created.str("apiVersion") + " " + created.str("spec", "parts"); got != "shop.example.com/v1beta1 [leg=4 top=1]" {
				t.Errorf("created: %s", got)
			}
			w := c.widget("w")
			if fmt.Sprint(w.Spec.Parts) != "[{leg 4} {top 1}]" || *w.Spec.Replicas != 2 || w.Spec.Options["a"] != "1" || w.Labels["x"] != "y" ||
				w.UID == "" ||
				w.Generation != 1 {
				t.Errorf("in v1: %+v", w)
			}
			if string(c.get(widgetsBetaPath+"/w").raw) != string(created.raw) {
				t.Error("the object read is not the object created")
			}
			updated := c.put(widgetsPath+"/w", widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}), spec(fields{"size": "large"}))).
				want(200).
				widget()
			if beta := c.get(
				widgetsBetaPath + "/w",
			); beta.str("metadata", "resourceVersion") != updated.ResourceVersion || beta.str("spec", "size") != "large" ||
				beta.str("spec", "parts") != "" ||
				beta.str("metadata", "generation") != "2" {
				t.Errorf("in v1beta1: %s", beta.raw)
			}
			noop := c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"size":"large"}}`).want(200)
			if noop.str("metadata", "resourceVersion") != updated.ResourceVersion {
				t.Error("an update that changes nothing took a revision")
			}
			list := c.get(widgetsBetaPath).want(200)
			if list.str("kind")+list.str("apiVersion") != "WidgetListshop.example.com/v1beta1" || text(list.items()[0], "spec", "size") != "large" {
				t.Errorf("list: %s", list.raw)
			}
			c.patch(mergePatch, widgetsBetaPath+"/w/status", `{"status":{"phase":"Ready"}}`).want(200)
			if w := c.widget("w"); w.Status.Phase != "Ready" {
				t.Errorf("status: %+v", w.Status)
			}
			c.delete(widgetsBetaPath+"/w", nil).want(200)
			c.get(widgetsPath + "/w").want(404)
		})
	}
}

func TestVersions_defaults(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	if w := c.create("new"); w.Spec.Size != "medium" {
		t.Errorf("v1: %s", w.Spec.Size)
	}
	c.post(widgetsBetaPath, widgetBeta("old")).want(201)
	if w := c.widget("old"); w.Spec.Size != "small" {
		t.Errorf("v1beta1: %s", w.Spec.Size)
	}
	c.apply(widgetsBetaPath+"/applied", "m", widgetBeta("applied")).want(201)
	if w := c.widget("applied"); w.Spec.Size != "small" {
		t.Errorf("applied in v1beta1: %s", w.Spec.Size)
	}
	if got := c.patch(mergePatch, widgetsBetaPath+"/new", `{"spec":{"size":null}}`).want(200).str("spec", "size"); got != "small" {
		t.Errorf("patched away in v1beta1: %s", got)
	}
}

func TestDefaults_hooksAfterGenerated(t *testing.T) {
	t.Parallel()
	c := startKind(t, annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Default(func(w *v1.Widget) {
			if w.Spec.Replicas == nil {
				replicas := int32(len(w.Spec.Size))
				w.Spec.Replicas = &replicas
			}
		}).
		Versions(strictBeta().Default(func(w *v1beta1.Widget) {
			if w.Spec.Options == nil {
				w.Spec.Options = map[string]string{"size": w.Spec.Size}
			}
		})))
	if w := c.create("w"); *w.Spec.Replicas != int32(len("medium")) || w.Spec.Options != nil {
		t.Errorf("v1: %+v", w.Spec)
	}
	old := c.post(widgetsBetaPath, widgetBeta("old")).want(201)
	if old.str("spec", "options", "size") != "small" {
		t.Errorf("v1beta1: %s", old.raw)
	}
}

func TestVersions_hubValidation(t *testing.T) {
	t.Parallel()
	c := startKind(t, widgets())
	const reason = `Widget.shop.example.com "w" is invalid: spec.replicas: Invalid value: 101: must be at most 100`
	bad := spec(fields{"replicas": 101})
	c.post(widgetsBetaPath, widgetBeta("w", bad)).refused(422, metav1.StatusReasonInvalid, reason)
	c.apply(widgetsBetaPath+"/w", "m", widgetBeta("w", bad)).refused(422, metav1.StatusReasonInvalid, reason)
	w := c.create("w", spec(fields{"options": fields{"frozen": "a"}}))
	c.put(widgetsBetaPath+"/w", widgetBeta("w", bad, metadata(fields{"resourceVersion": w.ResourceVersion}))).
		refused(422, metav1.StatusReasonInvalid, "spec.replicas", "spec.options[frozen]: Forbidden: cannot be changed")
	for _, mediaType := range []string{mergePatch, strategicType} {
		c.patch(mediaType, widgetsBetaPath+"/w", bad).refused(422, metav1.StatusReasonInvalid, reason)
	}
	c.patch(jsonPatch, widgetsBetaPath+"/w", `[{"op":"add","path":"/spec/replicas","value":101}]`).
		refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(mergePatch, widgetsBetaPath+"/w/scale", bad).refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"options":{"frozen":"b"}}}`).
		refused(422, metav1.StatusReasonInvalid, "spec.options[frozen]: Forbidden: cannot be changed")
	c.patch(mergePatch, widgetsBetaPath+"/w/status", `{"status":{"phase":"Impossible"}}`).
		refused(422, metav1.StatusReasonInvalid, "status.phase")
	s := c.post(widgetsPath, widget("two", spec(fields{"replicas": 101, "size": "huge"}))).
		refused(422, metav1.StatusReasonInvalid, "[spec.size: ", "spec.replicas: ")
	var causes []string
	for _, cause := range s.Details.Causes {
		causes = append(causes, string(cause.Type)+" "+cause.Field)
	}
	if !slices.Equal(causes, []string{"FieldValueNotSupported spec.size", "FieldValueInvalid spec.replicas"}) || s.Details.Name != "two" ||
		s.Details.Kind != "Widget" ||
		s.Details.Group != "shop.example.com" {
		t.Errorf("details: %+v", s.Details)
	}
}

func TestVersions_ownValidation(t *testing.T) {
	t.Parallel()
	c := startKind(
		t,
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Versions(strictBeta()).Scale(".spec.replicas", ".status.replicas", ""),
	)
	const reason = `spec.parts[1]: Invalid value: "bad=2": of default/w must not be bad`
	bad := spec(fields{"parts": []string{"good=1", "bad=2"}})
	c.post(widgetsBetaPath, widgetBeta("w", bad)).refused(422, metav1.StatusReasonInvalid, reason)
	c.post(widgetsPath, widget("w", spec(fields{"parts": []fields{{"name": "good"}, {"name": "bad", "count": 2}}}))).want(201)
	c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"replicas":1}}`).refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(mergePatch, widgetsBetaPath+"/w/scale", `{"spec":{"replicas":1}}`).refused(422, metav1.StatusReasonInvalid, reason)
	c.apply(widgetsBetaPath+"/w", "m", widgetBeta("w", spec(fields{"size": "large"})), "force=true").
		refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"replicas":1}}`).want(200)
	c.patch(mergePatch, widgetsPath+"/w/scale", `{"spec":{"replicas":2}}`).want(200)
	c.patch(mergePatch, widgetsBetaPath+"/w/status", `{"status":{"phase":"Fine"}}`).want(200)
	c.delete(widgetsBetaPath+"/w", nil).want(200)
}

func TestVersions_conversionError_isBadRequest(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	path := widgetsBetaPath + "/w"
	const reason = `cannot be converted to version "v1": part "leg": want name=count`
	bad := spec(fields{"parts": []string{"leg"}})
	c.post(widgetsBetaPath, widgetBeta("new", bad)).refused(400, metav1.StatusReasonBadRequest, reason)
	c.put(path, widgetBeta("w", bad, metadata(fields{"resourceVersion": w.ResourceVersion}))).
		refused(400, metav1.StatusReasonBadRequest, reason)
	c.patch(mergePatch, path, bad).refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(jsonPatch, path, `[{"op":"add","path":"/spec/parts","value":["leg"]}]`).refused(422, metav1.StatusReasonInvalid, reason)
	c.patch(strategicType, path, bad).refused(400, metav1.StatusReasonBadRequest, reason)
	c.apply(path, "m", widgetBeta("w", bad)).refused(400, metav1.StatusReasonBadRequest, reason)
	c.apply(widgetsBetaPath+"/new", "m", widgetBeta("new", bad)).refused(400, metav1.StatusReasonBadRequest, reason)
	c.apply(path+"/status", "m", widgetBeta("w", bad)).refused(400, metav1.StatusReasonBadRequest, reason)
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[w]" || c.widget("w").ResourceVersion != w.ResourceVersion {
		t.Errorf("left behind: %v", got)
	}
}

func TestVersions_deprecated_warns(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	const warning = "shop.example.com/v1beta1 Widget is deprecated; use v1"
	c.create("w")
	for name, a := range map[string]*answer{
		"list":   c.get(widgetsBetaPath),
		"get":    c.get(widgetsBetaPath + "/w"),
		"status": c.get(widgetsBetaPath + "/w/status"),
		"patch":  c.patch(mergePatch, widgetsBetaPath+"/w", `{}`),
		"create": c.post(widgetsBetaPath, widgetBeta("new")),
		"delete": c.delete(widgetsBetaPath+"/new", nil),
	} {
		if got := a.warnings(); !slices.Equal(got, []string{warning}) {
			t.Errorf("%s: warnings %q", name, got)
		}
	}
	if got := c.get(widgetsPath).warnings(); got != nil {
		t.Errorf("v1: warnings %q", got)
	}
}

func TestVersions_unserved_isReadable(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
	kind := func(k *annex.KindBuilder[v1.Widget]) annex.Server {
		return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{k}}}}
	}
	hub := func() *annex.KindBuilder[v1.Widget] {
		return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)
	}
	beta := func() *annex.VersionBuilder[v1beta1.Widget, v1.Widget] {
		return annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)
	}
	var rv string
	t.Run("the old server", func(t *testing.T) {
		c := startWith(t, kind(hub().Versions(beta()).StoredAs("v1beta1")), options)
		c.post(widgetsBetaPath+"?fieldManager=m", widgetBeta("w", spec(fields{"parts": []string{"leg=4"}}))).want(201)
		rv = c.apply(widgetsBetaPath+"/applied", "m", widgetBeta("applied", spec(fields{"parts": []string{"leg=4"}}))).
			want(201).
			str("metadata", "resourceVersion")
	})
	t.Run("the new server", func(t *testing.T) {
		c := startWith(t, kind(hub().Versions(beta().Unserved())), options)
		c.get(widgetsBetaPath).want(404)
		if w := c.widget("w"); fmt.Sprint(w.Spec.Parts) != "[{leg 4}]" || w.Spec.Size != "small" {
			t.Errorf("stored in v1beta1: %+v", w.Spec)
		}
		w := c.widget("applied")
		if w.ResourceVersion != rv {
			t.Errorf("revision %s, was %s", w.ResourceVersion, rv)
		}
		wantOwners(t, w, `m Apply v1beta1 {"f:spec":{"f:parts":{"v:\"leg=4\"":{}}}}`)
		got := c.apply(widgetsPath+"/applied", "m", widget("applied", spec(fields{"parts": []fields{{"name": "top"}}}))).want(200).widget()
		// Nothing is pruned of fields that were applied in a removed version.
		if fmt.Sprint(got.Spec.Parts) != "[{leg 4} {top 0}]" {
			t.Errorf("applied in v1: %+v", got.Spec)
		}
		c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"replicas":3}}`).want(200)
		if page := c.get(widgetsPath + "?limit=1").want(200).names(); fmt.Sprint(page) != "[applied]" {
			t.Errorf("page: %v", page)
		}
	})
	t.Run("and the old one again", func(t *testing.T) {
		c := startWith(t, kind(hub().Versions(beta()).StoredAs("v1beta1")), options)
		if got := c.get(widgetsBetaPath + "/w").want(200); got.str("spec", "parts")+got.str("spec", "replicas") != "[leg=4]3" {
			t.Errorf("stored in v1: %s", got.raw)
		}
	})
}

// Upstream makes tables and lists of metadata from objects of the hub version, whatever version is stored or
// requested.
func TestVersions_convertedMetadata_inTables(t *testing.T) {
	t.Parallel()
	const stash = "shop.example.com/color"
	toHub := func(in *v1beta1.Widget, hub *v1.Widget) error {
		if color, ok := in.Annotations[stash]; ok {
			hub.Annotations, hub.Spec.Options = nil, map[string]string{"color": color}
		}
		return nil
	}
	fromHub := func(hub *v1.Widget, out *v1beta1.Widget) error {
		if color, ok := hub.Spec.Options["color"]; ok {
			out.Annotations = map[string]string{stash: color}
		}
		return nil
	}
	for _, stored := range []string{"v1", "v1beta1"} {
		t.Run("stored as "+stored, func(t *testing.T) {
			t.Parallel()
			c := startKind(
				t,
				annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).StoredAs(stored).Versions(annex.Version(v1beta1.API, toHub, fromHub)),
			)
			c.post(widgetsPath, widget("w", spec(fields{"options": fields{"color": "red"}}))).want(201)
			if got := c.get(widgetsBetaPath + "/w").want(200); !strings.Contains(string(got.raw), stash) {
				t.Fatalf("the conversion does nothing: %s", got.raw)
			}
			for _, path := range []string{widgetsPath, widgetsBetaPath} {
				for _, form := range []string{metadataType, tableType} {
					for _, accept := range []string{form, form + ";answered=upstream", form} {
						if got := c.get(path, "Accept", accept).
							want(200); strings.Contains(string(got.raw), stash) ||
							!strings.Contains(string(got.raw), `"name":"w"`) {
							t.Errorf("%s as %s: %s", path, accept, got.raw)
						}
					}
				}
			}
		})
	}
}
