package apitest_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// owners prints the managed fields: manager, operation, version, subresource and the fields, sorted.
func owners(w *v1.Widget) []string {
	var all []string
	for _, entry := range w.ManagedFields {
		_, version, _ := strings.Cut(entry.APIVersion, "/")
		line := fmt.Sprintf("%s %s %s", entry.Manager, entry.Operation, version)
		if entry.Subresource != "" {
			line += " /" + entry.Subresource
		}
		all = append(all, line+" "+entry.FieldsV1.GetRawString())
	}
	slices.Sort(all)
	return all
}

func wantOwners(t *testing.T, w *v1.Widget, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := owners(w); !slices.Equal(got, want) {
		t.Errorf("managed fields:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestApply_createsAndPrunes(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	w := c.apply(path, "one", widget("w", spec(fields{
		"replicas": 2,
		"options":  fields{"a": "1", "b": "2"},
		"parts":    []fields{{"name": "leg", "count": 4}, {"name": "top", "count": 1}},
	}))).want(201).widget()
	if w.Generation != 1 || w.Spec.Size != "medium" {
		t.Errorf("applied: %+v", w)
	}
	wantOwners(
		t,
		w,
		`one Apply v1 {"f:spec":{"f:options":{"f:a":{},"f:b":{}},"f:parts":{"k:{\"name\":\"leg\"}":{".":{},`+
			`"f:count":{},"f:name":{}},"k:{\"name\":\"top\"}":{".":{},"f:count":{},"f:name":{}}},"f:replicas":{}}}`,
	)

	again := c.apply(path, "one", widget("w", spec(fields{
		"replicas": 2,
		"options":  fields{"a": "1", "b": "2"},
		"parts":    []fields{{"name": "leg", "count": 4}, {"name": "top", "count": 1}},
	}))).want(200).widget()
	if again.ResourceVersion != w.ResourceVersion {
		t.Error("applying the same again took a revision")
	}

	// Another manager adds a part and an option; then the first drops some fields.
	c.apply(path, "two", widget("w", spec(fields{"options": fields{"c": "3"}, "parts": []fields{{"name": "knob", "count": 9}}}))).want(200)
	w = c.apply(path, "one", widget("w", spec(fields{"options": fields{"a": "1"}, "parts": []fields{{"name": "leg", "count": 3}}}))).
		want(200).
		widget()
	if fmt.Sprint(w.Spec.Options) != "map[a:1 c:3]" || w.Spec.Replicas != nil || fmt.Sprint(w.Spec.Parts) != "[{leg 3} {knob 9}]" {
		t.Errorf("pruned: %+v", w.Spec)
	}
	wantOwners(t, w,
		`one Apply v1 {"f:spec":{"f:options":{"f:a":{}},"f:parts":{"k:{\"name\":\"leg\"}":{".":{},"f:count":{},"f:name":{}}}}}`,
		`two Apply v1 {"f:spec":{"f:options":{"f:c":{}},"f:parts":{"k:{\"name\":\"knob\"}":{".":{},"f:count":{},"f:name":{}}}}}`,
	)

	// A part with two managers stays until both have dropped it.
	both := widget("w", spec(fields{"parts": []fields{{"name": "lid"}}}))
	c.apply(path, "one", both).want(200)
	c.apply(path, "three", both).want(200)
	w = c.apply(path, "one", widget("w")).want(200).widget()
	if fmt.Sprint(w.Spec.Parts) != "[{knob 9} {lid 0}]" {
		t.Errorf("after one of two owners dropped lid: %v", w.Spec.Parts)
	}
	w = c.apply(path, "three", widget("w")).want(200).widget()
	if fmt.Sprint(w.Spec.Parts) != "[{knob 9}]" {
		t.Errorf("after both owners dropped lid: %v", w.Spec.Parts)
	}
}

func TestApply_conflicts(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	c.apply(path, "one", widget("w", spec(fields{"replicas": 1, "size": "small"}))).want(201)
	c.patch(mergePatch, path+"?fieldManager=editor", `{"spec":{"options":{"a":"b"}}}`).want(200)

	wanted := widget("w", spec(fields{"replicas": 2, "size": "large", "options": fields{"a": "c"}}))
	s := c.apply(path, "two", wanted).refused(409, metav1.StatusReasonConflict,
		"Apply failed with 3 conflicts: conflicts with \"editor\" using shop.example.com/v1:\n- .spec.options.a\nconflicts with \"one\":\n- "+
			".spec.replicas\n- .spec.size")
	var causes []string
	for _, cause := range s.Details.Causes {
		causes = append(causes, fmt.Sprintf("%s %s %s", cause.Type, cause.Field, cause.Message))
	}
	slices.Sort(causes)
	if len(causes) != 3 ||
		!strings.HasPrefix(causes[0], `FieldManagerConflict .spec.options.a conflict with "editor" using shop.example.com/v1`) ||
		causes[1] != `FieldManagerConflict .spec.replicas conflict with "one"` ||
		causes[2] != `FieldManagerConflict .spec.size conflict with "one"` {
		t.Errorf("causes:\n%s", strings.Join(causes, "\n"))
	}
	if w := c.widget("w"); *w.Spec.Replicas != 1 || w.Spec.Size != "small" {
		t.Errorf("a conflict changed the object: %+v", w.Spec)
	}

	w := c.apply(path, "two", wanted, "force=true").want(200).widget()
	if *w.Spec.Replicas != 2 || w.Spec.Size != "large" || w.Spec.Options["a"] != "c" {
		t.Errorf("forced: %+v", w.Spec)
	}
	wantOwners(t, w,
		`editor Update v1 {"f:spec":{"f:options":{}}}`,
		`two Apply v1 {"f:spec":{"f:options":{"f:a":{}},"f:replicas":{},"f:size":{}}}`,
	)

	// Applying the current value is no conflict, but shared ownership.
	w = c.apply(path, "one", widget("w", spec(fields{"replicas": 2}))).want(200).widget()
	wantOwners(t, w,
		`editor Update v1 {"f:spec":{"f:options":{}}}`,
		`two Apply v1 {"f:spec":{"f:options":{"f:a":{}},"f:replicas":{},"f:size":{}}}`,
		`one Apply v1 {"f:spec":{"f:replicas":{}}}`,
	)
}

func TestApply_rejections(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	w := c.create("w")
	c.patch(applyPatch, path, widget("w")).
		refused(422, metav1.StatusReasonInvalid, "fieldManager: Required value: is required for apply patch")
	c.patch(mergePatch, path+"?force=true", `{}`).
		refused(422, metav1.StatusReasonInvalid, "force: Forbidden: may not be specified for non-apply patch")
	c.apply(path, strings.Repeat("m", 129), widget("w")).refused(422, metav1.StatusReasonInvalid, "fieldManager: Too long")
	c.apply(path, "m", widgetBeta("w")).refused(400, metav1.StatusReasonBadRequest, "shop.example.com/v1beta1")
	c.apply(path, "m", shelf("w")).refused(400, metav1.StatusReasonBadRequest)
	c.apply(path, "m", `{"metadata":{"name":"w"}}`).refused(400, metav1.StatusReasonBadRequest)
	c.apply(path, "m", "not: [yaml").refused(400, metav1.StatusReasonBadRequest)
	c.apply(path, "m", widget("other")).
		refused(400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (w)")
	c.apply(path, "m", widget("w", metadata(fields{"managedFields": []fields{{"manager": "x"}}}))).
		refused(400, metav1.StatusReasonBadRequest, "metadata.managedFields must be nil")
	c.apply(path, "m", widget("w", metadata(fields{"resourceVersion": "1"}))).
		refused(409, metav1.StatusReasonConflict, "the object has been modified")
	c.apply(path, "m", widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}))).want(200)
	c.apply(widgetsPath+"/missing", "m", widget("missing", metadata(fields{"uid": "abc"}))).
		refused(409, metav1.StatusReasonConflict, "uid mismatch: the provided object specified uid abc, and no existing object was found")
	c.apply(widgetsPath+"/missing/status", "m", widget("missing")).refused(404, metav1.StatusReasonNotFound)
	c.apply(path, "m", widget("w", spec(fields{"size": "huge"})), "force=true").refused(422, metav1.StatusReasonInvalid, "spec.size")
	c.apply(path, "m", widget("w", spec(fields{"parts": []fields{{"name": "a"}, {"name": "a"}}}))).
		refused(500, "", `duplicate entries for key [name="a"]`)
	c.apply(path, "m", widget("w", spec(fields{"colour": "red"}))).refused(500, "", `.spec.colour: field not declared in schema`)
	c.apply(widgetsPath+"/W", "m", widget("W")).refused(422, metav1.StatusReasonInvalid, "metadata.name")
}

func TestApply_ignoredFields_areNotOwned(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	w := c.apply(path, "main", widget("w", spec(fields{"replicas": 1}), status(fields{"phase": "Mine"}))).want(201).widget()
	wantOwners(t, w, `main Apply v1 {"f:spec":{"f:replicas":{}}}`)
	if w.Status.Phase != "" {
		t.Errorf("status: %+v", w.Status)
	}
	w = c.apply(path+"/status", "controller", widget("w",
		metadata(fields{"labels": fields{"a": "b"}, "annotations": fields{"c": "d"}, "finalizers": []string{"shop.example.com/x"}}),
		spec(fields{"replicas": 7, "parts": []fields{{"name": "leg"}}}),
		status(fields{"phase": "Ready"}),
	)).want(200).widget()
	if w.Status.Phase != "Ready" || *w.Spec.Replicas != 1 || len(w.Spec.Parts) != 0 || len(w.Labels) != 0 || len(w.Finalizers) != 0 ||
		len(w.Annotations) != 0 {
		t.Errorf("applied status: %+v", w)
	}
	wantOwners(t, w,
		`main Apply v1 {"f:spec":{"f:replicas":{}}}`,
		`controller Apply v1 /status {"f:status":{"f:phase":{}}}`,
	)
	c.apply(path+"/status", "other", widget("w", status(fields{"phase": "Gone"}))).
		refused(409, metav1.StatusReasonConflict, `conflict with "controller" with subresource "status": .status.phase`)
	w = c.apply(path+"/status", "controller", widget("w")).want(200).widget()
	if w.Status.Phase != "" {
		t.Errorf("a status that no manager applies any more stays: %+v", w.Status)
	}
	wantOwners(t, w, `main Apply v1 {"f:spec":{"f:replicas":{}}}`)

	// The same in the other version.
	c.apply(widgetsBetaPath+"/w/status", "beta", widgetBeta(
		"w",
		metadata(
			fields{"labels": fields{"a": "b"}},
		),
		spec(fields{"size": "large", "parts": []string{"a=1"}}),
		status(fields{"phase": "Old"}),
	)).want(200)
	c.apply(widgetsBetaPath+"/w", "betamain", widgetBeta("w", spec(fields{"options": fields{"a": "1"}}), status(fields{"phase": "New"}))).
		want(200)
	wantOwners(t, c.widget("w"),
		`main Apply v1 {"f:spec":{"f:replicas":{}}}`,
		`beta Apply v1beta1 /status {"f:status":{"f:phase":{}}}`,
		`betamain Apply v1beta1 {"f:spec":{"f:options":{"f:a":{}}}}`,
	)
	c.apply(widgetsBetaPath+"/w/status", "beta", widgetBeta("w")).want(200)
	c.apply(widgetsBetaPath+"/w", "betamain", widgetBeta("w")).want(200)

	// The same for updates.
	c.patch(mergePatch, path+"?fieldManager=up", `{"status":{"phase":"X"},"spec":{"size":"large"}}`).want(200)
	w = c.patch(mergePatch, path+"/status?fieldManager=upstatus", `{"metadata":{"labels":{"a":"b"}},`+
		`"status":{"phase":"X"},"spec":{"size":"small"}}`).
		want(200).
		widget()
	wantOwners(t, w,
		`main Apply v1 {"f:spec":{"f:replicas":{}}}`,
		`up Update v1 {"f:spec":{"f:size":{}}}`,
		`upstatus Update v1 /status {"f:status":{"f:phase":{}}}`,
	)
}

func TestManagedFields_versions(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path, beta := widgetsPath+"/w", widgetsBetaPath+"/w"
	w := c.apply(beta, "old", widgetBeta("w", spec(fields{"size": "small", "parts": []string{"leg=4"}}))).want(201)
	if got := w.str("apiVersion"); got != "shop.example.com/v1beta1" {
		t.Errorf("answered in %s", got)
	}
	wantOwners(t, c.widget("w"), `old Apply v1beta1 {"f:spec":{"f:parts":{"v:\"leg=4\"":{}},"f:size":{}}}`)

	// The same manager in the other version: the value is unchanged, so nothing conflicts, and it is still one
	// manager.
	got := c.apply(path, "new", widget("w", spec(fields{"size": "small", "parts": []fields{{"name": "leg", "count": 4}}, "replicas": 3}))).
		want(200).
		widget()
	wantOwners(t, got,
		`old Apply v1beta1 {"f:spec":{"f:parts":{"v:\"leg=4\"":{}},"f:size":{}}}`,
		`new Apply v1 {"f:spec":{"f:parts":{"k:{\"name\":\"leg\"}":{".":{},"f:count":{},"f:name":{}}},"f:replicas":{},"f:size":{}}}`,
	)
	c.apply(beta, "old", widgetBeta("w", spec(fields{"size": "small", "parts": []string{"leg=4"}}))).want(200)
	got = c.apply(path, "old", widget("w", spec(fields{"size": "small"}))).want(200).widget()
	wantOwners(t, got,
		`old Apply v1 {"f:spec":{"f:size":{}}}`,
		`new Apply v1 {"f:spec":{"f:parts":{"k:{\"name\":\"leg\"}":{".":{},"f:count":{},"f:name":{}}},"f:replicas":{},"f:size":{}}}`,
	)
	if fmt.Sprint(got.Spec.Parts) != "[{leg 4}]" {
		t.Errorf("a part that another manager wants went: %v", got.Spec.Parts)
	}

	// Fields that a manager applied in one version are pruned when it applies the other.
	c.apply(widgetsBetaPath+"/pruned", "m", widgetBeta("pruned", spec(fields{"parts": []string{"leg=4"}, "replicas": 2}))).want(201)
	pruned := c.apply(widgetsPath+"/pruned", "m", widget("pruned", spec(fields{"parts": []fields{{"name": "top"}}}))).want(200).widget()
	if fmt.Sprint(pruned.Spec.Parts) != "[{top 0}]" || pruned.Spec.Replicas != nil {
		t.Errorf("pruned: %+v", pruned.Spec)
	}

	// A real conflict across versions.
	c.apply(beta, "third", widgetBeta("w", spec(fields{"size": "large", "replicas": 9}))).refused(409, metav1.StatusReasonConflict,
		"Apply failed with 3 conflicts: conflicts with \"new\":\n- .spec.replicas\n- .spec.size\nconflicts with \"old\":\n- .spec.size")

	// Updates record their version, too.
	c.patch(mergePatch, beta+"?fieldManager=upbeta", `{"spec":{"options":{"a":"1"}}}`).want(200)
	c.patch(mergePatch, path+"?fieldManager=up", `{"spec":{"options":{"b":"2"}}}`).want(200)
	c.patch(mergePatch, beta+"/status?fieldManager=upbeta", `{"status":{"phase":"Ready"}}`).want(200)
	wantOwners(t, c.widget("w"),
		`old Apply v1 {"f:spec":{"f:size":{}}}`,
		`new Apply v1 {"f:spec":{"f:parts":{"k:{\"name\":\"leg\"}":{".":{},"f:count":{},"f:name":{}}},"f:replicas":{},"f:size":{}}}`,
		`upbeta Update v1beta1 {"f:spec":{"f:options":{".":{},"f:a":{}}}}`,
		`up Update v1 {"f:spec":{"f:options":{"f:b":{}}}}`,
		`upbeta Update v1beta1 /status {"f:status":{"f:phase":{}}}`,
	)
	if got, want := c.get(beta).object()["metadata"], c.get(path).object()["metadata"]; !reflect.DeepEqual(got, want) {
		t.Errorf("metadata differs between the versions:\n%v\n%v", got, want)
	}
}

func TestManagedFields_updates(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	w := c.post(widgetsPath+"?fieldManager=creator", widget("w", spec(fields{"replicas": 1, "options": fields{"a": "1"}}))).want(201).widget()
	wantOwners(t, w, `creator Update v1 {"f:spec":{"f:options":{".":{},"f:a":{}},"f:replicas":{},"f:size":{}}}`)

	w = c.do("PUT", path, widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}),
		spec(fields{"replicas": 2, "options": fields{"a": "1"}})), "User-Agent", "agent/1.0 (x)").
		want(200).
		widget()
	wantOwners(t, w,
		`creator Update v1 {"f:spec":{"f:options":{".":{},"f:a":{}},"f:size":{}}}`,
		`agent Update v1 {"f:spec":{"f:replicas":{}}}`,
	)
	// An update may drop the list, and then nothing is tracked before an apply.
	w = c.patch(mergePatch, path+"?fieldManager=cleaner", `{"metadata":{"managedFields":[{}]}}`).want(200).widget()
	wantOwners(t, w)
	w = c.patch(mergePatch, path+"?fieldManager=later", `{"spec":{"replicas":5}}`).want(200).widget()
	wantOwners(t, w)
	w = c.apply(path, "m", widget("w", spec(fields{"replicas": 5}))).want(200).widget()
	if got := owners(
		w,
	); len(got) != 2 || !strings.HasPrefix(got[0], "before-first-apply Update v1 ") ||
		got[1] != `m Apply v1 {"f:spec":{"f:replicas":{}}}` {
		t.Errorf("managed fields:\n%s", strings.Join(got, "\n"))
	}
	// Invalid entries of the list are not stored.
	now := c.patch(mergePatch, path, `{"metadata":{"managedFields":[{"manager":"x","operation":"Nothing","apiVersion":"v1"}]}}`).
		want(200).
		widget()
	wantOwners(t, now, owners(w)...)
}

func TestApply_upgradeFromClientSide(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	const last = "kubectl.kubernetes.io/last-applied-configuration"
	config := `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"annotations":{},"name":"w"},"spec":{"replicas":1}}`
	c.post(widgetsPath+"?fieldManager=kubectl-client-side-apply",
		widget("w", metadata(fields{"annotations": fields{last: config + "\n"}}), spec(fields{"replicas": 1}))).
		want(201)
	w := c.apply(path, "kubectl", widget("w", spec(fields{"replicas": 2}))).want(200).widget()
	if *w.Spec.Replicas != 2 {
		t.Errorf("applied: %+v", w.Spec)
	}
	for _, entry := range w.ManagedFields {
		if entry.Manager == "kubectl-client-side-apply" && strings.Contains(entry.FieldsV1.GetRawString(), "f:replicas") {
			t.Errorf("client-side apply still owns replicas: %s", entry.FieldsV1.GetRawString())
		}
	}
}
