package apitest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/api"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	markedv1beta1 "github.com/annexapi/annex/internal/testing/shop/marked/v1beta1"
	"github.com/annexapi/annex/store/memory"
)

const (
	markedPath     = "/apis/marked.shop.example.com/v1/namespaces/default/crates"
	markedBetaPath = "/apis/marked.shop.example.com/v1beta1/namespaces/default/crates"
)

func markedShop() annex.Server {
	return annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{markedCrates()}}}}
}

func markedCrates() *annex.KindBuilder[markedv1.Crate] {
	return annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API).
		Versions(annex.Version(markedv1beta1.API, markedv1beta1.ToHub, markedv1beta1.FromHub))
}

func startMarked(t *testing.T, k annex.Kind) *client {
	t.Helper()
	return start(t, annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{
		k, annex.KindOf[markedv1.Pallet, markedv1.PalletList]("pallets", markedv1.API),
	}}}})
}

func markedCrate(name string, f fields) map[string]any {
	return object("v1", "Crate", name, spec(f), fields{"apiVersion": "marked.shop.example.com/v1"})
}

// reference validates documents as a server of CustomResourceDefinitions does. It is assembled anew from
// apiextensions' libraries.
type reference struct {
	t        *testing.T
	schema   *structuralschema.Structural
	validate interface {
		Validate(v *unstructured.Unstructured) field.ErrorList
		ValidateUpdate(v, old *unstructured.Unstructured) field.ErrorList
	}
}

func newReference(t *testing.T, definition string) reference {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal([]byte(definition), &crd); err != nil {
		t.Fatal(err)
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema,
		internal,
		nil,
	); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	scale := &apiextensions.CustomResourceSubresourceScale{}
	if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(
		crd.Spec.Versions[0].Subresources.Scale,
		scale,
		nil,
	); err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.Kind}
	strategy := customresource.NewStrategy(nil, true, kind, rules, nil, s, nil, scale, nil)
	return reference{t, s, inContext{
		func(v *unstructured.Unstructured) field.ErrorList { return strategy.Validate(t.Context(), v) },
		func(v, old *unstructured.Unstructured) field.ErrorList {
			return strategy.ValidateUpdate(t.Context(), v, old)
		},
	}}
}

type inContext struct {
	create func(v *unstructured.Unstructured) field.ErrorList
	update func(v, old *unstructured.Unstructured) field.ErrorList
}

func (c inContext) Validate(v *unstructured.Unstructured) field.ErrorList { return c.create(v) }
func (c inContext) ValidateUpdate(v, old *unstructured.Unstructured) field.ErrorList {
	return c.update(v, old)
}

// complete returns a document in the state in which that server validates it.
func (r reference) complete(doc map[string]any) *unstructured.Unstructured {
	r.t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		r.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		r.t.Fatal(err)
	}
	u.SetNamespace("default")
	pruning.Prune(u.Object, r.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, r.schema)
	defaulting.Default(u.Object, r.schema)
	return u
}

// causes returns the causes of a rejection. Their order is that of a map in Go.
func (r reference) causes(doc map[string]any) []string {
	return slices.Sorted(slices.Values(causesOf(r.validate.Validate(r.complete(doc)))))
}

func causesOf(errs field.ErrorList) []string {
	var all []string
	for _, e := range errs {
		all = append(all, fmt.Sprintf("%s %s: %s", string(e.Type), e.Field, e.ErrorBody()))
	}
	return all
}

func inOrder(s metav1.Status) []string {
	var all []string
	for _, c := range s.Details.Causes {
		all = append(all, fmt.Sprintf("%s %s: %s", c.Type, c.Field, c.Message))
	}
	return all
}

func TestMarkers_rejections_likeCRDs(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	server := newReference(t, markedv1.API().CustomResources()["Crate"])
	long := strings.Repeat("x", 21)
	for name, doc := range map[string]map[string]any{
		"missing, and written as empty in Go": markedCrate("a", fields{}),
		"no spec":                             object("v1", "Crate", "a", fields{"apiVersion": "marked.shop.example.com/v1"}),
		"enum":                                markedCrate("a", fields{"owner": "me", "size": "middling"}),
		"enum, empty":                         markedCrate("a", fields{"owner": "me", "size": ""}),
		"minimum":                             markedCrate("a", fields{"owner": "me", "boxes": 0}),
		"maximum":                             markedCrate("a", fields{"owner": "me", "boxes": 10}),
		"a string for a number":               markedCrate("a", fields{"owner": "me", "boxes": "three"}),
		"a number for a string":               markedCrate("a", fields{"owner": 3}),
		"a list for an object":                object("v1", "Crate", "a", fields{"apiVersion": "marked.shop.example.com/v1", "spec": []string{}}),
		"a fraction for a number":             markedCrate("a", fields{"owner": "me", "boxes": 1.5}),
		"too great for its type":              markedCrate("a", fields{"owner": "me", "boxes": 1 << 40}),
		"several, of several types":           markedCrate("a", fields{"owner": 3, "boxes": "x", "size": "y", "goods": "z", "tags": fields{}}),
		"maxLength":                           markedCrate("a", fields{"owner": long}),
		"minLength":                           markedCrate("a", fields{"owner": "me", "label": "x"}),
		"minLength, empty and optional":       markedCrate("a", fields{"owner": "me", "code": ""}),
		"pattern":                             markedCrate("a", fields{"owner": "me", "label": "ABC"}),
		"rule with a path and a reason":       markedCrate("a", fields{"owner": "same", "label": "same"}),
		"rule about the name":                 markedCrate(long, fields{"owner": "me"}),
		"map keys": markedCrate("a",
			fields{"owner": "me", "goods": []fields{{"name": "x", "kind": "k"}, {"name": "x", "kind": "k"}}}),
		"a missing map key":     markedCrate("a", fields{"owner": "me", "goods": []fields{{"kind": "k"}}}),
		"in an element":         markedCrate("a", fields{"owner": "me", "goods": []fields{{"name": "x", "kind": ""}}}),
		"missing in an element": markedCrate("a", fields{"owner": "me", "goods": []fields{{"name": "x"}}}),
		"a broken element":      markedCrate("a", fields{"owner": "me", "goods": []any{fields{"name": "x", "kind": "k"}, "y"}}),
		"too many": markedCrate("a",
			fields{"owner": "me", "goods": []fields{{"name": "x", "kind": "k"}, {"name": "y", "kind": "k"}, {"name": "z", "kind": "k"},
				{"name": "q", "kind": "k"}}}),
		"set":                        markedCrate("a", fields{"owner": "me", "tags": []string{"a", "a"}}),
		"neither integer nor string": markedCrate("a", fields{"owner": "me", "weight": true}),
		"no time":                    markedCrate("a", fields{"owner": "me", "until": "tomorrow"}),
		"name":                       markedCrate("Not A Name", fields{"owner": "me"}),
	} {
		t.Run(name, func(t *testing.T) {
			want := server.causes(doc)
			if len(want) == 0 {
				t.Fatal("the reference refuses nothing")
			}
			got := slices.Sorted(slices.Values(inOrder(c.post(markedPath, doc).refused(422, metav1.StatusReasonInvalid))))
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			applied := c.apply(markedPath+"/"+strings.ReplaceAll(text(doc, "metadata", "name"), " ", "%20"), "me", doc)
			// Upstream answers 500 to documents that cannot be merged.
			if applied.code < 400 {
				t.Errorf("applied: %d", applied.code)
			}
		})
	}
}

func TestMarkers_defaults(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	got := c.post(markedPath, markedCrate("a", fields{"owner": "", "goods": []fields{{"name": "x", "kind": "k"}}})).want(201)
	if size, boxes := got.str("spec", "size"), fmt.Sprint(got.object()["spec"].(map[string]any)["boxes"]); size != "small" || boxes != "3" {
		t.Errorf("size %q, boxes %s", size, boxes)
	}
	c.apply(markedPath+"/b", "me", markedCrate("b", fields{"owner": "me"})).want(201)
	if size := c.get(markedPath+"/b").str("spec", "size"); size != "small" {
		t.Errorf("applied: size %q", size)
	}
	c.apply(markedPath+"/b", "me", markedCrate("b", fields{"owner": "me", "label": "ab"})).want(200)
	missing := markedCrate("b", fields{"owner": "me", "goods": []fields{{"name": "x"}}})
	s := c.apply(markedPath+"/b", "me", missing).refused(422, metav1.StatusReasonInvalid)
	if got := inOrder(s); !slices.Contains(got, "FieldValueRequired spec.goods[0].kind: Required value") {
		t.Errorf("applied without a required field: %q", got)
	}
}

func TestMarkers_updates(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	c.post(markedPath, markedCrate("a", fields{"owner": "me"})).want(201)

	// A client may send back the object that it got, with fields that it has never set.
	got := c.get(markedPath + "/a").object()
	c.put(markedPath+"/a", got).want(200)
	c.patch("application/merge-patch+json", markedPath+"/a", spec(fields{"label": "ab"})).want(200)
	c.patch("application/json-patch+json", markedPath+"/a", []fields{{"op": "replace", "path": "/spec/label", "value": "abc"}}).want(200)
	c.patch("application/merge-patch+json", markedPath+"/a", spec(fields{"size": nil})).want(200)
	if size := c.get(markedPath+"/a").str("spec", "size"); size != "small" {
		t.Errorf("a field that is removed gets its default: %q", size)
	}
	for name, patch := range map[string]struct {
		media, want string
		body        any
	}{
		"rule with the old value": {"application/merge-patch+json", "FieldValueInvalid spec.owner: Invalid value: \"you\": the owner was me",
			spec(fields{"owner": "you"})},
		"removed": {"application/merge-patch+json", "FieldValueRequired spec.owner: Required value", spec(fields{"owner": nil})},
		"removed, by a JSON patch": {"application/json-patch+json", "FieldValueRequired spec.owner: Required value",
			[]fields{{"op": "remove", "path": "/spec/owner"}}},
		"of another type": {"application/merge-patch+json", "FieldValueTypeInvalid spec.boxes: Invalid value: \"string\": " +
			"spec.boxes in body must be of type integer: \"string\"", spec(fields{"boxes": "x"})},
	} {
		s := c.patch(patch.media, markedPath+"/a", patch.body).refused(422, metav1.StatusReasonInvalid)
		if got := inOrder(s); len(got) == 0 || got[0] != patch.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	c.patch("application/merge-patch+json", markedPath+"/a/status", status(fields{"lid": "Open", "boxes": 2})).want(200)
	s := c.patch("application/merge-patch+json", markedPath+"/a/status", status(fields{"lid": "Ajar"})).
		refused(422, metav1.StatusReasonInvalid)
	if got := inOrder(
		s,
	); len(got) == 0 ||
		got[0] != `FieldValueNotSupported status.lid: Unsupported value: "Ajar": supported values: "Open", "Closed"` {
		t.Errorf("status: %q", got)
	}
	c.patch("application/merge-patch+json", markedPath+"/a/scale", spec(fields{"replicas": 4})).want(200)
	c.patch("application/merge-patch+json", markedPath+"/a/scale", spec(fields{"replicas": 10})).refused(422, metav1.StatusReasonInvalid)
}

func TestMarkers_wrongType_unknownFieldsStayReported(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	crate := markedCrate("a", fields{"owner": "me", "boxes": 1.5, "colour": "red"})
	const unknown = `unknown field "spec.colour"`
	c.post(markedPath+"?fieldValidation=Strict", crate).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "strict decoding error: "+unknown)
	warned := c.post(markedPath+"?fieldValidation=Warn", crate)
	if got := inOrder(
		warned.refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid),
	); len(got) == 0 ||
		!strings.HasPrefix(got[0], "FieldValueTypeInvalid spec.boxes: ") {
		t.Errorf("refused with %q", got)
	}
	if got := warned.warnings(); !slices.Contains(got, unknown) {
		t.Errorf("warnings: %q", got)
	}
	c.post(markedPath+"?fieldValidation=Ignore", crate).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
}

func TestMarkers_otherVersion(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	beta := func(f fields) map[string]any {
		return object("v1beta1", "Crate", "b", spec(f), fields{"apiVersion": "marked.shop.example.com/v1beta1"})
	}
	s := c.post(markedBetaPath, beta(fields{"owner": "me", "size": "middling"})).refused(422, metav1.StatusReasonInvalid)
	if got := inOrder(s); len(got) == 0 || !strings.Contains(got[0], `"small", "large", "huge"`) {
		t.Errorf("its own rules: %q", got)
	}
	s = c.post(markedBetaPath, beta(fields{"owner": "me", "size": "huge"})).refused(422, metav1.StatusReasonInvalid)
	if got := inOrder(s); len(got) == 0 || !strings.HasSuffix(got[0], `supported values: "small", "large"`) {
		t.Errorf("the hub's rules: %q", got)
	}
	created := c.post(markedBetaPath, beta(fields{"owner": "me"})).want(201)
	if size := created.str("spec", "size"); size != "large" {
		t.Errorf("its own default: %q", size)
	}
	if w := created.warnings(); !slices.ContainsFunc(w, func(w string) bool {
		return strings.Contains(w, "marked.shop.example.com/v1beta1 Crate is deprecated; use marked.shop.example.com/v1 Crate")
	}) {
		t.Errorf("warnings: %q", w)
	}
}

func TestMarkers_servedEndpoints(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	c.post(markedPath, markedCrate("a", fields{"owner": "me", "size": "large"})).want(201)
	c.post(markedPath, markedCrate("b", fields{"owner": "me"})).want(201)

	if names := c.get(markedPath + "?fieldSelector=spec.size%3Dlarge").names(); !slices.Equal(names, []string{"a"}) {
		t.Errorf("selected: %q", names)
	}
	table := func(path string) (headings []string, cells []any) {
		var got metav1.Table
		decode(t, c.get(path, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").want(200).raw, &got)
		for _, h := range got.ColumnDefinitions {
			headings = append(headings, fmt.Sprintf("%s/%d", h.Name, h.Priority))
		}
		return headings, got.Rows[0].Cells
	}
	headings, cells := table(markedPath)
	if want := []string{"Name/0", "Size/0", "Boxes/1", "Packed/0"}; !slices.Equal(headings, want) || fmt.Sprint(cells[1:3]) != "[large 3]" {
		t.Errorf("%q, %v", headings, cells)
	}
	headings, cells = table(markedBetaPath)
	if want := []string{"Name/0", "Box Count/0"}; !slices.Equal(headings, want) || fmt.Sprint(cells) != "[a 3]" {
		t.Errorf("%q, %v", headings, cells)
	}
	var list metav1.APIResourceList
	decode(t, c.get("/apis/marked.shop.example.com/v1").want(200).raw, &list)
	var served []string
	for _, r := range list.APIResources {
		served = append(served, fmt.Sprint(r.Name, " ", r.SingularName, " ", r.Namespaced, " ", r.ShortNames, " ", r.Categories))
	}
	slices.Sort(served)
	want := []string{"crates crate true [cr] [shop]", "crates/scale  true [] []", "crates/status  true [] []", "pallets pallet false [] []"}
	if !slices.Equal(served, want) {
		t.Errorf("got %q, want %q", served, want)
	}
	pallets := "/apis/marked.shop.example.com/v1/pallets"
	c.post(pallets, object("v1", "Pallet", "p", fields{"apiVersion": "marked.shop.example.com/v1"},
		metadata(fields{"name": "p", "namespace": nil}), status(fields{"lid": "Open"}))).
		want(201)
	if lid := c.get(pallets+"/p").str("status", "lid"); lid != "Open" {
		t.Errorf("status without /status: %q", lid)
	}
}

func TestMarkers_openAPI(t *testing.T) {
	t.Parallel()
	c := startMarked(t, markedCrates())
	v3 := c.get("/openapi/v3/apis/marked.shop.example.com/v1").want(200).object()["components"].(map[string]any)
	for document, schemas := range map[string]any{
		"v2": c.get("/openapi/v2").want(200).object()["definitions"],
		"v3": v3["schemas"],
	} {
		s := schemas.(map[string]any)
		// Upstream leaves defaults out of version 2, for old clients' sake.
		omitted := func(text string) string {
			if document == "v2" {
				return ""
			}
			return text
		}
		crate := s["com.example.shop.marked.v1.CrateSpec"].(map[string]any)
		if got := fmt.Sprint(crate["required"]); got != "[owner]" {
			t.Errorf("%s: required: %s", document, got)
		}
		properties := crate["properties"].(map[string]any)
		for name, want := range map[string]string{
			"size":  `{` + omitted(`"default":"small",`) + `"enum":["small","large"],"type":"string"}`,
			"boxes": `{` + omitted(`"default":3,`) + `"format":"int32","maximum":9,"minimum":1,"type":"integer"}`,
			"owner": `{"description":"Owner must be given, and may be empty.","maxLength":16,"type":"string",` +
				`"x-kubernetes-validations":[{"messageExpression":"'the owner was ' + oldSelf","rule":"self == oldSelf"}]}`,
			"code":  `{"description":"Code is optional and always written.","minLength":3,"type":"string"}`,
			"label": `{"maxLength":8,"minLength":2,"pattern":"^[a-z]+$","type":"string"}`,
		} {
			if got, err := json.Marshal(properties[name]); err != nil || string(got) != want {
				t.Errorf("%s: %s: %s, want %s", document, name, got, want)
			}
		}
		good := s["com.example.shop.marked.v1.Good"].(map[string]any)["properties"].(map[string]any)
		if got := fmt.Sprint(good["count"]); got != "map["+omitted("default:1 ")+"format:int32 type:integer]" {
			t.Errorf("%s: count of goods: %s", document, got)
		}
	}
}

func TestMarkers_contradictingDeclaration_isRejected(t *testing.T) {
	t.Parallel()
	skipped := func() api.Facts {
		facts := markedv1beta1.API()
		facts.CustomResources = func() map[string]string { return map[string]string{"Crate": ""} }
		return facts
	}
	for want, k := range map[string]annex.Kind{
		`version v1beta1: its Go type is marked +kubebuilder:skipversion, or its package +kubebuilder:skip: do not serve it`: annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API).
			Versions(annex.Version(skipped, markedv1beta1.ToHub, markedv1beta1.FromHub)),
		`resource "boxes": the markers have the resource "crates": use this name, or add +kubebuilder:resource:path=boxes`: annex.KindOf[markedv1.Crate,
			markedv1.CrateList]("boxes", markedv1.API),
		`ClusterScoped: the markers make the kind namespaced: add +kubebuilder:resource:scope=Cluster`: markedCrates().ClusterScoped(),
		`WithoutStatus: the markers include +kubebuilder:subresource:status`:                           markedCrates().WithoutStatus(),
		`Scale: the marker +kubebuilder:subresource:scale has other paths`: markedCrates().Scale(".spec.boxes",
			".status.boxes", ""),
		`StoredAs("v1beta1"): version v1 is marked +kubebuilder:storageversion`: markedCrates().StoredAs("v1beta1"),
	} {
		_, err := annex.New(
			t.Context(),
			annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{k}}}},
			annex.Options{Storage: memory.Storage()},
		)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
