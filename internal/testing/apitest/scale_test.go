package apitest_test

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func scale(replicas any, meta fields) map[string]any {
	meta["name"], meta["namespace"] = "w", "default"
	return fields{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta, "spec": fields{"replicas": replicas}}
}

func TestScale(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w", spec(fields{"replicas": 2}))
	c.patch(mergePatch, widgetsPath+"/w/status", `{"status":{"replicas":1,"selector":"app=w","phase":"Ready"}}`).want(200)
	for _, path := range []string{widgetsPath + "/w/scale", widgetsBetaPath + "/w/scale"} {
		got := c.get(path).want(200)
		if s := fmt.Sprint(
			got.str("apiVersion"),
			got.str("kind"),
			got.str("metadata", "name"),
			got.str("metadata", "namespace"),
			got.str("spec", "replicas"),
			got.str("status", "replicas"),
			got.str("status", "selector"),
		); s != "autoscaling/v1Scalewdefault21app=w" {
			t.Errorf("got %s", got.raw)
		}
		if got.str("metadata", "uid") != string(w.UID) || got.str("metadata", "creationTimestamp") == "" || got.str("metadata", "labels") != "" {
			t.Errorf("metadata: %s", got.raw)
		}
	}
	path := widgetsPath + "/w/scale"
	rv := c.get(path).str("metadata", "resourceVersion")

	put := c.put(path, scale(5, fields{"resourceVersion": rv})).want(200)
	if put.str("kind")+put.str("spec", "replicas") != "Scale5" {
		t.Errorf("put: %s", put.raw)
	}
	w = c.widget("w")
	if *w.Spec.Replicas != 5 || w.Generation != 2 || w.Status.Phase != "Ready" || w.Spec.Size != "medium" {
		t.Errorf("scaled: %+v", w)
	}
	c.put(path, scale(6, fields{"resourceVersion": rv})).refused(409, metav1.StatusReasonConflict, "the object has been modified")
	c.put(path, scale(6, fields{"uid": "another"})).refused(409, metav1.StatusReasonConflict, "UID in precondition: another")
	c.put(path, scale(6, fields{})).want(200) // a scale may be set regardless of its state
	c.put(path, scale(-1, fields{})).
		refused(422, metav1.StatusReasonInvalid, `Scale.autoscaling "w" is invalid: spec.replicas: Invalid value: -1: must be greater than `+
			`or equal to 0`)
	c.put(path, scale(101, fields{})).
		refused(422, metav1.StatusReasonInvalid, `Widget.shop.example.com "w" is invalid: spec.replicas: Invalid value: 101: must be at most 100`)
	c.put(path, scale("many", fields{})).refused(400, metav1.StatusReasonBadRequest)
	c.put(path, widget("w")).refused(400, metav1.StatusReasonBadRequest)
	c.put(widgetsPath+"/missing/scale", fields{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": fields{"name": "missing"}}).
		refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	c.patch(mergePatch, widgetsPath+"/missing/scale", `{}`).refused(404, metav1.StatusReasonNotFound)
	c.post(path, scale(1, fields{})).want(405)
	c.delete(path, nil).want(405)
	c.get(shelvesPath+"/s/scale").refused(404, metav1.StatusReasonNotFound)

	for i, mediaType := range []string{mergePatch, strategicType} {
		if got := c.patch(mediaType, path, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 10+i)).
			want(200); got.str(
			"spec",
			"replicas",
		) != fmt.Sprint(
			10+i,
		) {
			t.Errorf("%s: %s", mediaType, got.raw)
		}
	}
	c.patch(jsonPatch, path, `[{"op":"test","path":"/spec/replicas","value":11},{"op":"replace","path":"/spec/replicas","value":12}]`).
		want(200)
	if w := c.widget("w"); *w.Spec.Replicas != 12 {
		t.Errorf("patched: %+v", w.Spec)
	}
	c.patch(mergePatch, path, `{"spec":{"replicas":0}}`).want(200)
	if got := c.get(path).want(200); got.str("spec", "replicas") != "" && got.str("spec", "replicas") != "0" {
		t.Errorf("scaled to nothing: %s", got.raw)
	}
	c.patch(mergePatch, path, `{"status":{"replicas":50},"metadata":{"labels":{"a":"b"}}}`).want(200)
	if w := c.widget("w"); w.Status.Replicas != 1 || len(w.Labels) != 0 {
		t.Errorf("/scale wrote more than the replicas: %+v", w)
	}
	if got := headings(
		table(c.get(path, "Accept", tableType)),
	); got != "Name:string:name:0 Desired:integer::0 Available:integer::0 Age:date::0" {
		t.Errorf("as a table: %s", got)
	}
	unset := c.create("unset")
	if got := c.get(widgetsPath + "/unset/scale").want(200); unset.Spec.Replicas != nil || got.str("metadata", "name") != "unset" {
		t.Errorf("replicas that were never set: %s", got.raw)
	}
	c.patch(mergePatch, widgetsPath+"/unset/scale", `{"spec":{"replicas":3}}`).want(200)
	if w := c.widget("unset"); *w.Spec.Replicas != 3 {
		t.Errorf("scaled from nothing: %+v", w.Spec)
	}
}

func TestScale_managedFields(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	path := widgetsPath + "/w"
	c.apply(path, "owner", widget("w", spec(fields{"replicas": 1, "size": "large"}))).want(201)
	if got := c.get(path + "/scale").want(200); text(got.object()["metadata"].(map[string]any), "managedFields") == "" ||
		got.str("metadata", "managedFields") == "" {
		t.Errorf("the scale knows no owner: %s", got.raw)
	}
	c.do(http.MethodPatch, path+"/scale?fieldManager=scaler", `{"spec":{"replicas":2}}`, "Content-Type", mergePatch).want(200)
	wantOwners(t, c.widget("w"),
		`owner Apply v1 {"f:spec":{"f:size":{}}}`,
		`scaler Update v1 /scale {"f:spec":{"f:replicas":{}}}`,
	)
	c.apply(path, "owner", widget("w", spec(fields{"replicas": 1, "size": "large"}))).
		refused(409, metav1.StatusReasonConflict, `conflict with "scaler" with subresource "scale" using shop.example.com/v1: .spec.replicas`)
	c.apply(path, "owner", widget("w", spec(fields{"size": "large"}))).want(200)
	if w := c.widget("w"); *w.Spec.Replicas != 2 {
		t.Errorf("what was given up was pruned: %+v", w.Spec)
	}

	scaleOf := fields{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": fields{"name": "w"}, "spec": fields{"replicas": 3}}
	c.apply(path+"/scale", "applier", scaleOf).
		refused(409, metav1.StatusReasonConflict, `conflict with "scaler" with subresource "scale" using autoscaling/v1`, ".spec.replicas")
	c.apply(path+"/scale", "applier", scaleOf, "force=true").want(200)
	w := c.widget("w")
	wantOwners(t, w,
		`owner Apply v1 {"f:spec":{"f:size":{}}}`,
		`applier Apply v1 /scale {"f:spec":{"f:replicas":{}}}`,
	)
	if *w.Spec.Replicas != 3 {
		t.Errorf("applied: %+v", w.Spec)
	}
	again := c.apply(path+"/scale", "applier", scaleOf).want(200)
	if again.str("metadata", "resourceVersion") != w.ResourceVersion {
		t.Error("applying the same scale took a revision")
	}

	// Through the other version.
	c.do(http.MethodPatch, widgetsBetaPath+"/w/scale?fieldManager=beta", `{"spec":{"replicas":4}}`, "Content-Type", mergePatch).want(200)
	wantOwners(t, c.widget("w"),
		`owner Apply v1 {"f:spec":{"f:size":{}}}`,
		`beta Update v1beta1 /scale {"f:spec":{"f:replicas":{}}}`,
	)
	c.apply(widgetsPath+"/missing/scale", "applier", fields{"apiVersion": "autoscaling/v1", "kind": "Scale",
		"metadata": fields{"name": "missing"}, "spec": fields{"replicas": 3}}).
		refused(404, metav1.StatusReasonNotFound)
}
