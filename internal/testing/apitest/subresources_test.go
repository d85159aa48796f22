package apitest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

// workshop is the shop with subresources of every sort.
func workshop() annex.Server {
	s := shop()
	s.Groups[0].Kinds[0] = widgets().
		Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Operation != annex.Delete && r.Object.Spec.Options["forbidden"] != "" {
				return fmt.Errorf("hook: %s %s/%s, old size %q", r.Operation, r.Resource.Resource, r.Subresource, r.Old.Spec.Size)
			}
			return nil
		}).
		Subresources(
			annex.Action("inspection", inspect).Validate(func(_ context.Context, i *v1.Inspection) field.ErrorList {
				if i.Phase == "" {
					return field.ErrorList{field.Required(field.NewPath("phase"), "say what shall become of it")}
				}
				return nil
			}),
			annex.Action("resizing", resize).On(annex.Create, annex.Update),
			annex.Action("ping", ping).On(annex.Create),
			annex.View("summary", summarize),
			annex.View("twin", twin),
			annex.Connect("log", widgetLog).LongRunning(func(o *v1.LogOptions) bool { return o.Follow }),
			annex.Connect("attach", attach).Methods("GET", "POST").Answers(&v1.Inspection{}),
		)
	return s
}

// inspect writes the phase into the status and a label into the metadata.
func inspect(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
	switch r.Object.Phase {
	case "Broken":
		return nil, errors.New("the inspector is ill")
	case "Wrapped":
		return nil, fmt.Errorf("not now: %w", apierrors.NewTooManyRequests("busy", 7))
	case "Panic":
		panic("the inspector fell")
	case "Nothing":
		return nil, nil
	}
	w, err := r.UpdateStatus(ctx, func(w *v1.Widget) error {
		if w.Status.Phase == "Final" {
			return apierrors.NewConflict(
				schema.GroupResource{Group: "shop.example.com", Resource: "widgets"},
				w.Name,
				errors.New("its phase is final"),
			)
		}
		w.Status.Phase = r.Object.Phase
		w.Spec.Size = "ignored"
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write the verdict: %w", err)
	}
	answer := r.Object.DeepCopy()
	answer.Verdict = fmt.Sprintf(
		"%s was %q, is %q, says %s by %s, dry run %v",
		r.Name,
		r.Parent.Status.Phase,
		w.Status.Phase,
		r.Object.Inspector,
		r.User.GetName(),
		r.DryRun,
	)
	return answer, nil
}

func resize(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Resizing]) (*v1.Widget, error) {
	return r.Update(ctx, func(w *v1.Widget) error {
		w.Spec.Size = r.Object.Size
		if r.Object.Size == "forbidden" {
			w.Spec.Size, w.Spec.Options = "small", map[string]string{"forbidden": "yes"}
		}
		w.Status.Phase = "ignored"
		return nil
	})
}

func ping(_ context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*metav1.Status, error) {
	return &metav1.Status{Status: metav1.StatusSuccess, Message: string(r.Operation) + " " + r.Resource.Version}, nil
}

func summarize(ctx context.Context, r *annex.ViewRequest[v1.Widget, v1.LogOptions]) (*v1.Inspection, error) {
	switch r.Options.Prefix {
	case "refused":
		return nil, fmt.Errorf("no summary: %w", apierrors.NewResourceExpired("it has been thrown away"))
	case "failed":
		return nil, errors.New("the summary is ill")
	case "none":
		return nil, nil
	}
	_, deadline := ctx.Deadline()
	options, _ := json.Marshal(r.Options)
	return &v1.Inspection{
		Verdict: fmt.Sprintf(
			"%s/%s in %s for %s, deadline %v: %s",
			r.Namespace,
			r.Parent.Name,
			r.Resource.Version,
			r.User.GetName(),
			deadline,
			options,
		),
	}, nil
}

func twin(_ context.Context, r *annex.ViewRequest[v1.Widget, annex.NoOptions]) (*v1.Widget, error) {
	r.Parent.Name += "-twin"
	return r.Parent, nil
}

func widgetLog(_ context.Context, r *annex.ConnectRequest[v1.Widget, v1.LogOptions]) (http.Handler, error) {
	if r.Options.Prefix == "refused" {
		return nil, fmt.Errorf("no log: %w", apierrors.NewResourceExpired("it has been thrown away"))
	}
	if r.Options.Prefix == "none" {
		return nil, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.Options.Prefix == "object" {
			r.Responder.Object(http.StatusOK, r.Parent)
			return
		}
		_, deadline := req.Context().Deadline()
		options, _ := json.Marshal(r.Options)
		fmt.Fprintf(w, "%s of %s in %s, deadline %v: %s\n", r.Options.Prefix, r.Name, r.Resource.Version, deadline, options)
		if r.Options.Follow {
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}
	}), nil
}

func attach(_ context.Context, r *annex.ConnectRequest[v1.Widget, annex.NoOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		_, deadline := req.Context().Deadline()
		fmt.Fprintf(w, "%s %s %s %v", req.Method, r.Name, body, deadline)
	}), nil
}

func TestSubresources_requestsInAllVersions(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	c.create("w")
	phase := ""
	for _, test := range []struct{ path, body, mediaType, version, next string }{
		{widgetsPath, `{"phase":"Tested"}`, jsonType, "v1", "Tested"},
		{widgetsPath, `{"apiVersion":"shop.example.com/v1","kind":"Inspection","phase":"Packed","inspector":"joe"}`, jsonType, "v1", "Packed"},
		{widgetsPath, "phase: Sold\n", yamlType, "v1", "Sold"},
		{widgetsBetaPath, `{"phase":"Returned"}`, jsonType, "v1beta1", "Returned"},
		{widgetsBetaPath, `{"apiVersion":"shop.example.com/v1beta1","kind":"Inspection","phase":"Repaired"}`, jsonType, "v1beta1", "Repaired"},
	} {
		a := c.post(test.path+"/w/inspection", test.body, "Content-Type", test.mediaType).want(201)
		inspector := "anybody"
		if strings.Contains(test.body, "joe") {
			inspector = "joe"
		}
		verdict := fmt.Sprintf("w was %q, is %q, says %s by annex-admin, dry run false", phase, test.next, inspector)
		if a.str("apiVersion") != "shop.example.com/"+test.version || a.str("kind") != "Inspection" || a.str("phase") != test.next ||
			a.str("verdict") != verdict {
			t.Errorf("%s: %s, want %s", test.body, a.raw, verdict)
		}
		phase = test.next
		if w := c.widget("w"); w.Status.Phase != phase || w.Spec.Size != "medium" || w.Generation != 1 {
			t.Errorf("%s: %+v", test.body, w)
		}
	}
}

func TestSubresources_parentInRequestedVersion(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	uid := c.create("w").UID
	a := c.post(widgetsPath+"/w/resizing", `{"size":"small"}`).want(201)
	if w := a.widget(); w.Spec.Size != "small" || w.Generation != 2 || w.Status.Phase != "" || w.APIVersion != "shop.example.com/v1" {
		t.Errorf("%s", a.raw)
	}
	a = c.put(widgetsBetaPath+"/w/resizing", fields{"apiVersion": "shop.example.com/v1beta1", "kind": "Resizing",
		"metadata": fields{"name": "w", "uid": uid}, "size": "large"}).
		want(200)
	if a.str("apiVersion") != "shop.example.com/v1beta1" || a.str("kind") != "Widget" || a.str("spec", "size") != "large" ||
		a.str("metadata", "generation") != "3" {
		t.Errorf("%s", a.raw)
	}
	if got := a.warnings(); len(got) != 2 || !strings.Contains(got[0]+got[1], "large widgets are hard to carry") ||
		!strings.Contains(got[0]+got[1], "deprecated") {
		t.Errorf("warnings %q", got)
	}
	a = c.post(widgetsBetaPath+"/w/ping", `{}`).want(201)
	if a.str("kind") != "Status" || a.str("message") != "CREATE v1beta1" {
		t.Errorf("%s", a.raw)
	}
	if rv := c.widget("w").ResourceVersion; rv == "" {
		t.Error("no resource version")
	} else {
		body := fields{"metadata": fields{"name": "w", "resourceVersion": rv}, "size": "small"}
		c.put(widgetsPath+"/w/resizing", body).want(200)
		c.put(widgetsPath+"/w/resizing", body).refused(409, metav1.StatusReasonConflict, "the object has been modified")
	}
}

func TestSubresources_rejections(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	c.create("w")
	c.create("final")
	c.post(widgetsPath+"/final/inspection", `{"phase":"Final"}`).want(201)
	before := c.widget("w").ResourceVersion
	inspection, resizing := widgetsPath+"/w/inspection", widgetsPath+"/w/resizing"

	// The hook's own errors.
	c.post(inspection, `{}`).
		refused(422, metav1.StatusReasonInvalid, `Inspection.shop.example.com "w" is invalid: phase: Required value: say what shall become of it`)
	c.post(inspection, `{"phase":"x","remark":"more than twelve"}`).
		refused(422, metav1.StatusReasonInvalid, `Inspection.shop.example.com "w" is invalid: remark: Too long: may not be more than 12`)
	c.post(inspection, `{"phase":"Broken"}`).refused(500, metav1.StatusReasonInternalError, "the inspector is ill")
	if a := c.post(
		inspection,
		`{"phase":"Wrapped"}`,
	); a.refused(429, metav1.StatusReasonTooManyRequests, "not now: busy").Details.RetryAfterSeconds != 7 ||
		a.header.Get("Retry-After") != "7" {
		t.Errorf("%s", a.raw)
	}
	c.post(inspection, `{"phase":"Panic"}`).want(500)
	c.post(inspection, `{"phase":"Nothing"}`).refused(500, metav1.StatusReasonInternalError, "returned no object")
	c.post(widgetsPath+"/final/inspection", `{"phase":"Other"}`).
		refused(409, metav1.StatusReasonConflict, "write the verdict: ", "its phase is final")

	// Errors of the kind's own functions and hooks about the parent's change.
	c.post(inspection, `{"phase":"Impossible"}`).
		refused(422, metav1.StatusReasonInvalid, `Widget.shop.example.com "w" is invalid: status.phase`)
	c.post(resizing, `{"size":"huge"}`).refused(422, metav1.StatusReasonInvalid, `Widget.shop.example.com "w" is invalid: spec.size`)
	c.post(resizing, `{"size":"forbidden"}`).refused(403, metav1.StatusReasonForbidden, `hook: UPDATE widgets/resizing, old size "medium"`)

	// Names.
	c.post(widgetsPath+"/missing/inspection", `{"phase":"x"}`).
		refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	c.put(widgetsPath+"/missing/resizing", fields{"metadata": fields{"name": "missing"}}).
		refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	other := strings.Replace(inspection, "/default/", "/elsewhere/", 1)
	c.post(other, `{"phase":"x"}`).refused(404, metav1.StatusReasonNotFound, "elsewhere")
	c.post(resizing, fields{"metadata": fields{"name": "other"}}).
		refused(400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (w)")
	c.put(resizing, fields{"metadata": fields{"name": "other"}}).
		refused(400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (w)")
	c.post(resizing, fields{"metadata": fields{"namespace": "other"}}).refused(400, metav1.StatusReasonBadRequest, "namespace")
	c.put(resizing, fields{"metadata": fields{"name": "w", "uid": "other"}, "size": "small"}).
		refused(409, metav1.StatusReasonConflict, "UID in precondition: other")
	c.put(resizing, fields{"metadata": fields{"name": "w", "resourceVersion": "1"}, "size": "small"}).
		refused(409, metav1.StatusReasonConflict, "the object has been modified")
	c.post(widgetsPath+"/w/nothing", `{}`).refused(404, metav1.StatusReasonNotFound)
	c.post(shelvesPath+"/s/inspection", `{}`).refused(404, metav1.StatusReasonNotFound)

	// Methods, media types and bodies.
	for method, path := range map[string]string{http.MethodGet: inspection, http.MethodPut: inspection, http.MethodDelete: inspection,
		http.MethodPatch: resizing} {
		c.do(method, path, `{}`).want(405)
	}
	c.post(inspection, `phase`, "Content-Type", "text/plain").refused(415, metav1.StatusReasonUnsupportedMediaType)
	c.post(inspection, `{"phase":"x"}`, "Accept", "text/plain").refused(406, metav1.StatusReasonNotAcceptable)
	c.post(inspection, `{`).refused(400, metav1.StatusReasonBadRequest)
	c.post(inspection, `{"phase":7}`).refused(400, metav1.StatusReasonBadRequest)
	c.post(inspection, `{"kind":"Widget","apiVersion":"shop.example.com/v1"}`).refused(400, metav1.StatusReasonBadRequest, "Widget")
	c.post(inspection, `{"kind":"Inspection","apiVersion":"shop.example.com/v1beta1","phase":"x"}`).
		refused(400, metav1.StatusReasonBadRequest, "does not match the expected API version")
	c.post(inspection+"?fieldValidation=Strict", `{"phase":"x","colour":"red"}`).
		refused(400, metav1.StatusReasonBadRequest, `unknown field "colour"`)
	c.post(inspection+"?dryRun=some", `{"phase":"x"}`).refused(422, metav1.StatusReasonInvalid, "dryRun")

	if after := c.widget("w"); after.ResourceVersion != before {
		t.Errorf("a refused request changed it: %+v", after)
	}
}

func TestSubresources_dryRun(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	before := c.create("w").ResourceVersion
	a := c.post(widgetsPath+"/w/inspection?dryRun=All", `{"phase":"Tested"}`).want(201)
	if !strings.Contains(a.str("verdict"), `is "Tested"`) || !strings.Contains(a.str("verdict"), "dry run true") {
		t.Errorf("%s", a.raw)
	}
	if a := c.put(widgetsPath+"/w/resizing?dryRun=All", fields{"metadata": fields{"name": "w"}, "size": "small"}).
		want(200); a.str(
		"spec",
		"size",
	) != "small" {
		t.Errorf("%s", a.raw)
	}
	if after := c.widget("w"); after.ResourceVersion != before || after.Status.Phase != "" || after.Spec.Size != "medium" {
		t.Errorf("a dry run left %+v", after)
	}
}

func TestSubresources_concurrentChangesOfParent(t *testing.T) {
	t.Parallel()
	c := start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().Subresources(annex.Action("inspection",
			func(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
				return r.UpdateStatus(ctx, func(w *v1.Widget) error { w.Status.Replicas++; return nil })
			})),
	}}}})
	c.create("w")
	const each, writers = 10, 8
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				if a := c.post(widgetsPath+"/w/inspection", `{}`); a.code != 201 {
					t.Errorf("%d: %s", a.code, a.raw)
				}
			}
		})
	}
	all.Wait()
	if w := c.widget("w"); w.Status.Replicas != each*writers {
		t.Errorf("%d changes of %d", w.Status.Replicas, each*writers)
	}
}

func TestSubresources_managedFields(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	c.create("w")
	managers := func() map[string]string {
		managers := map[string]string{}
		for _, entry := range c.widget("w").ManagedFields {
			managers[entry.Manager+" "+string(entry.Operation)+" "+entry.Subresource+" "+entry.APIVersion] = string(entry.FieldsV1.GetRawString())
		}
		return managers
	}
	c.post(widgetsPath+"/w/inspection?fieldManager=inspector", `{"phase":"Fine"}`).want(201)
	if got := managers()["inspector Update status shop.example.com/v1"]; got != `{"f:status":{"f:phase":{}}}` {
		t.Errorf("UpdateStatus: %q of %v", got, managers())
	}
	c.do(http.MethodPut, widgetsPath+"/w/resizing", `{"metadata":{"name":"w"},"size":"small"}`, "User-Agent", "resizer/v1.2 (linux)").
		want(200)
	if got := managers()["resizer Update  shop.example.com/v1"]; got != `{"f:spec":{"f:size":{}}}` {
		t.Errorf("Update: %q of %v", got, managers())
	}

	status := fields{
		"apiVersion": "shop.example.com/v1",
		"kind":       "Widget",
		"metadata":   fields{"name": "w"},
		"status":     fields{"phase": "Applied"},
	}
	c.apply(widgetsPath+"/w/status", "applier", status).
		refused(409, metav1.StatusReasonConflict, `conflict with "inspector" with subresource "status"`, ".status.phase")
	size := fields{"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": fields{"name": "w"}, "spec": fields{"size": "large"}}
	c.apply(widgetsPath+"/w", "applier", size).refused(409, metav1.StatusReasonConflict, `conflict with "resizer"`, ".spec.size")

	version := c.widget("w").ResourceVersion
	c.post(widgetsPath+"/w/inspection?fieldManager=inspector", `{"phase":"Fine"}`).want(201)
	if w := c.widget("w"); w.ResourceVersion != version {
		t.Error("a change that changes nothing was written")
	}
}

func TestSubresources_recreatedParent_isNotChanged(t *testing.T) {
	t.Parallel()
	var c *client
	c = start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().Subresources(annex.Action("inspection",
			func(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
				// Another client replaces the widget meanwhile.
				c.delete(widgetsPath+"/w", nil).want(200)
				c.create("w")
				return r.UpdateStatus(ctx, func(w *v1.Widget) error { w.Status.Phase = "Inspected"; return nil })
			})),
	}}}})
	c.create("w")
	c.post(widgetsPath+"/w/inspection", `{}`).refused(409, metav1.StatusReasonConflict, "UID")
	if w := c.widget("w"); w.Status.Phase != "" {
		t.Errorf("%+v", w)
	}
}

func TestConnect_typedOptions(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	c.create("w")
	path := widgetsPath + "/w/log"
	for query, want := range map[string]string{
		"":                               `log of w in v1, deadline true: {"prefix":"log","since":null}`,
		"?tailLines=3":                   `log of w in v1, deadline true: {"tailLines":3,"prefix":"log","since":null}`,
		"?prefix=p&levels=a&levels=b":    `p of w in v1, deadline true: {"prefix":"p","levels":["a","b"],"since":null}`,
		"?since=2026-01-02T03:04:05Z":    `log of w in v1, deadline true: {"prefix":"log","since":"2026-01-02T03:04:05Z"}`,
		"?share=0.5&follow=0&other=text": `log of w in v1, deadline true: {"prefix":"log","since":null,"share":0.5}`,
		"?follow=false":                  `log of w in v1, deadline true: {"prefix":"log","since":null}`,
	} {
		if a := c.get(path + query).want(200); string(a.raw) != want+"\n" {
			t.Errorf("%s: %s, want %s", query, a.raw, want)
		}
	}
	if a := c.get(widgetsBetaPath + "/w/log").want(200); !strings.HasPrefix(string(a.raw), "log of w in v1beta1,") {
		t.Errorf("%s", a.raw)
	}
	if a := c.get(widgetsBetaPath + "/w/log?prefix=object").
		want(200); a.str("apiVersion") != "shop.example.com/v1beta1" ||
		a.str("kind") != "Widget" {
		t.Errorf("%s", a.raw)
	}
	c.get(path+"?tailLines=many").refused(400, metav1.StatusReasonBadRequest, `parameter tailLines: "many" is not an integer of 64 bits`)
	c.get(path+"?share=half").refused(400, metav1.StatusReasonBadRequest, `parameter share: "half" is not a number`)
	c.get(path+"?since=yesterday").refused(400, metav1.StatusReasonBadRequest, "parameter since")
	c.get(path+"?follow=true&tailLines=x").refused(400, metav1.StatusReasonBadRequest, "tailLines")
	c.get(path+"?prefix=refused").refused(410, metav1.StatusReasonExpired, "no log: it has been thrown away")
	c.get(path+"?prefix=none").refused(500, metav1.StatusReasonInternalError, "no handler")
	c.get(path+"?dryRun=All").refused(400, metav1.StatusReasonBadRequest, "dryRun is not supported")
	c.get(widgetsPath+"/missing/log").refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	c.post(path, `{}`).want(405)
	c.put(widgetsPath+"/w/attach", `{}`).want(405)
	if a := c.get(widgetsPath + "/w/attach").want(200); string(a.raw) != "GET w  false" {
		t.Errorf("%s", a.raw)
	}
	if a := c.post(widgetsPath+"/w/attach", "anything", "Content-Type", "text/plain").want(200); string(a.raw) != "POST w anything false" {
		t.Errorf("%s", a.raw)
	}
}

func TestView_optionsInAllVersions(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	c.create("w")
	path := widgetsPath + "/w/summary"
	for query, want := range map[string]string{
		"":                               `deadline true: {"prefix":"log","since":null}`,
		"?tailLines=3":                   `deadline true: {"tailLines":3,"prefix":"log","since":null}`,
		"?prefix=p&levels=a&levels=b":    `deadline true: {"prefix":"p","levels":["a","b"],"since":null}`,
		"?other=text&pretty=0&follow=no": `deadline true: {"follow":true,"prefix":"log","since":null}`,
	} {
		a := c.get(path + query).want(200)
		if got := a.str(
			"verdict",
		); !strings.HasPrefix(got, "default/w in v1 for ") || !strings.HasSuffix(got, want) || a.str("kind") != "Inspection" ||
			a.str("apiVersion") != "shop.example.com/v1" {
			t.Errorf("%s: %s, want %s", query, a.raw, want)
		}
	}
	if a := c.get(widgetsBetaPath + "/w/summary").
		want(200); !strings.HasPrefix(a.str("verdict"), "default/w in v1beta1 ") ||
		a.str("apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("%s", a.raw)
	}
	if a := c.get(path, "Accept", "application/yaml").want(200); !strings.Contains(string(a.raw), "\nverdict: ") {
		t.Errorf("%s", a.raw)
	}
	if a := c.get(widgetsBetaPath + "/w/twin").
		want(200); a.str("metadata", "name") != "w-twin" ||
		a.str("apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("%s", a.raw)
	}
	if a := c.get(widgetsPath+"/w/twin?anything=ignored", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		want(200); a.str("kind") != "Table" ||
		!strings.Contains(string(a.raw), "w-twin") {
		t.Errorf("%s", a.raw)
	}
	c.get(path+"?tailLines=many").refused(400, metav1.StatusReasonBadRequest, `parameter tailLines: "many" is not an integer of 64 bits`)
	c.get(path+"?prefix=refused").refused(410, metav1.StatusReasonExpired, "no summary: it has been thrown away")
	c.get(path+"?prefix=failed").refused(500, metav1.StatusReasonInternalError, "the summary is ill")
	c.get(path+"?prefix=none").
		refused(500, metav1.StatusReasonInternalError, "view summary of widgets.shop.example.com returned no object")
	c.get(widgetsPath+"/missing/summary").refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	c.get(path, "Accept", "image/png").refused(406, metav1.StatusReasonNotAcceptable, "application/json")
	c.get(path, "Accept", "application/vnd.kubernetes.protobuf").want(406)
	c.post(path, `{}`).want(405)
	c.put(path, `{}`).want(405)
}

func TestConnect_follow_endsWithServer(t *testing.T) {
	t.Parallel()
	instance, stop := run(t, workshop(), annex.Options{Storage: memory.Storage()})
	c := clientOf(t, instance)
	c.create("w")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response := c.send(ctx, http.MethodGet, widgetsPath+"/w/log?follow=true", nil)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "log of w in v1, deadline false") {
		t.Fatalf("%q, %v", line, err)
	}
	stopped := make(chan error)
	go func() { stopped <- stop() }()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("the stream was cut off: %q, %v", rest, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestSubresources_permissions(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("secret,jane,42,staff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startWith(t, workshop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: file})
	c.create("w")
	jane := c.stranger("secret")
	for _, test := range []struct{ method, sub, verb string }{
		{http.MethodPost, "inspection", "create"},
		{http.MethodPut, "resizing", "update"},
		{http.MethodGet, "summary", "get"},
		{http.MethodGet, "twin", "get"},
		{http.MethodGet, "log", "get"},
		{http.MethodPost, "attach", "create"},
	} {
		jane.do(test.method, widgetsPath+"/w/"+test.sub, `{}`).refused(403, metav1.StatusReasonForbidden,
			fmt.Sprintf(`User "jane" cannot %s resource "widgets/%s" in API group "shop.example.com" in the namespace "default"`, test.verb,
				test.sub),
		)
	}
	c.stranger("").post(widgetsPath+"/w/inspection", `{}`).refused(401, metav1.StatusReasonUnauthorized)
}

func TestSubresources_discovery(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	for _, version := range []string{"v1", "v1beta1"} {
		var list metav1.APIResourceList
		decode(t, c.get("/apis/shop.example.com/"+version).want(200).raw, &list)
		got := map[string]string{}
		for _, r := range list.APIResources {
			got[r.Name] = fmt.Sprintf("%s %v %v", r.Kind, r.Verbs, r.Namespaced)
		}
		for name, want := range map[string]string{
			"widgets/inspection": "Inspection [create] true",
			"widgets/resizing":   "Resizing [create update] true",
			"widgets/ping":       "Inspection [create] true",
			"widgets/summary":    "Inspection [get] true",
			"widgets/twin":       "Widget [get] true",
			"widgets/log":        "LogOptions [get] true",
			"widgets/attach":     "Widget [create get] true",
			"widgets/status":     "Widget [get patch update] true",
		} {
			if got[name] != want {
				t.Errorf("%s: %s is %q, want %q", version, name, got[name], want)
			}
		}
	}
}

func TestSubresources_openAPI(t *testing.T) {
	t.Parallel()
	c := start(t, workshop())
	for _, version := range []string{"v1", "v1beta1"} {
		var doc struct {
			Paths map[string]map[string]any
		}
		decode(t, c.get("/openapi/v3/apis/shop.example.com/"+version).want(200).raw, &doc)
		title := "V" + version[1:]
		prefix := "/apis/shop.example.com/" + version + "/namespaces/{namespace}/widgets/{name}/"
		for path, wants := range map[string][]string{
			"inspection post": {"createShopExampleCom" + title + "NamespacedWidgetInspection", "com.example.shop.v1.Inspection", `"dryRun"`},
			"resizing put": {"replaceShopExampleCom" + title + "NamespacedWidgetResizing", "com.example.shop.v1.Resizing",
				"com.example.shop." + version + ".Widget"},
			"ping post": {"createShopExampleCom" + title + "NamespacedWidgetPing", "meta.v1.Status"},
			"summary get": {"readShopExampleCom" + title + "NamespacedWidgetSummary", `"tailLines"`, `"follow"`,
				"com.example.shop.v1.Inspection"},
			"twin get": {"readShopExampleCom" + title + "NamespacedWidgetTwin", "com.example.shop." + version + ".Widget"},
			"log get": {"connectShopExampleCom" + title + "GetNamespacedWidgetLog", `"tailLines"`, `"follow"`,
				`"content":{"*/*":{"schema":{"type":"string"}}}`},
			"attach post": {"connectShopExampleCom" + title + "PostNamespacedWidgetAttach",
				`"content":{"*/*":{"schema":{"$ref":"#/components/schemas/com.example.shop.v1.Inspection"}}}`},
		} {
			sub, method, _ := strings.Cut(path, " ")
			operation, err := json.Marshal(doc.Paths[prefix+sub])
			if err != nil {
				t.Fatal(err)
			}
			if doc.Paths[prefix+sub][method] == nil {
				t.Errorf("%s: no %s", version, path)
			}
			for _, want := range wants {
				if !strings.Contains(string(operation), want) {
					t.Errorf("%s %s: no %s in %s", version, path, want, operation)
				}
			}
		}
	}
}

func TestSubresources_allGroups(t *testing.T) {
	t.Parallel()
	s := moved()
	kind := s.Groups[0].Kinds[0].(*annex.KindBuilder[v1.Widget])
	kind.Subresources(annex.Action("inspection", inspect), annex.Connect("log", widgetLog))
	c := start(t, s)
	c.create("w")
	const gizmos = "/apis/legacy.example.com/v1/namespaces/default/gizmos"
	a := c.post(gizmos+"/w/inspection", `{"apiVersion":"legacy.example.com/v1","kind":"Inspection","phase":"Tested"}`).want(201)
	if a.str("apiVersion") != "legacy.example.com/v1" || a.str("kind") != "Inspection" {
		t.Errorf("%s", a.raw)
	}
	if w := c.widget("w"); w.Status.Phase != "Tested" {
		t.Errorf("%+v", w.Status)
	}
	if a := c.get(gizmos + "/w/log?tailLines=1").want(200); !strings.HasPrefix(string(a.raw), "log of w in v1,") {
		t.Errorf("%s", a.raw)
	}
	c.post(gizmos+"/missing/inspection", `{"phase":"x"}`).
		refused(404, metav1.StatusReasonNotFound, `gizmos.legacy.example.com "missing" not found`)
}

func TestSubresources_clusterScopedAndVirtualKinds(t *testing.T) {
	t.Parallel()
	shelf := v1.Shelf{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	c := startKind(t, annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().
		Virtual(annex.Source[v1.Shelf]{
			Get: func(_ context.Context, _, name string) (*v1.Shelf, error) {
				if name != "s" {
					return nil, annex.ErrNotFound
				}
				return shelf.DeepCopy(), nil
			},
			List: func(context.Context) ([]v1.Shelf, error) { return []v1.Shelf{shelf}, nil },
		}).
		Subresources(
			annex.Action("inspection", func(_ context.Context, r *annex.ActionRequest[v1.Shelf, v1.Inspection]) (*v1.Inspection, error) {
				r.Object.Verdict = "shelf " + r.Parent.Name
				return r.Object, nil
			}),
			annex.Action("resizing", func(ctx context.Context, r *annex.ActionRequest[v1.Shelf, v1.Inspection]) (*v1.Shelf, error) {
				return r.Update(ctx, func(s *v1.Shelf) error { s.Widgets = []string{"w"}; return nil })
			}),
			annex.Action("repainting", func(ctx context.Context, r *annex.ActionRequest[v1.Shelf, v1.Inspection]) (*v1.Shelf, error) {
				return r.UpdateStatus(ctx, func(*v1.Shelf) error { return nil })
			}),
		))
	if a := c.post(shelvesPath+"/s/inspection", `{}`).want(201); a.str("verdict") != "shelf s" {
		t.Errorf("%s", a.raw)
	}
	c.post(shelvesPath+"/missing/inspection", `{}`).refused(404, metav1.StatusReasonNotFound, `shelves.shop.example.com "missing" not found`)
	c.post(shelvesPath+"/s/resizing", `{}`).refused(405, metav1.StatusReasonMethodNotAllowed, "update")
	c.post(shelvesPath+"/s/repainting", `{}`).refused(500, metav1.StatusReasonInternalError, "has no /status to update")
}

// echo takes the connection over and returns its input until the context ends.
func echo(ctx context.Context, _ *annex.ConnectRequest[v1.Widget, annex.NoOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	}), nil
}

func TestConnect_hijack(t *testing.T) {
	t.Parallel()
	s := shop()
	s.Groups[0].Kinds[0] = widgets().Subresources(annex.Connect("exec", echo))
	instance, stop := run(t, s, annex.Options{Storage: memory.Storage()})
	c := clientOf(t, instance)
	c.create("w")
	config := rest.CopyConfig(c.config)
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	upgrading := connect(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response := upgrading.send(ctx, http.MethodGet, widgetsPath+"/w/exec", nil, "Connection", "Upgrade", "Upgrade", "echo")
	defer response.Body.Close()
	stream, ok := response.Body.(io.ReadWriter)
	if response.StatusCode != http.StatusSwitchingProtocols || !ok {
		raw, _ := io.ReadAll(response.Body)
		t.Fatalf("%s: %s", response.Status, raw)
	}
	lines := bufio.NewReader(stream)
	for _, line := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(stream, line); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); err != nil || got != line {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(lines); len(rest) > 0 {
		t.Errorf("%q after the end, %v", rest, err)
	}
}

func TestConnect_hooksRunBeforeUpgrade(t *testing.T) {
	t.Parallel()
	s := shop()
	s.Groups[0].Kinds[0] = widgets().
		Subresources(annex.Connect("log", widgetLog), annex.Connect("exec", echo), annex.Connect("tail", tail)).
		AdmitConnect(func(_ context.Context, c annex.Connection[v1.Widget]) error {
			switch o := c.Options.(type) {
			case nil:
			case *TailOptions:
				if o.Lines > 3 {
					return apierrors.NewTooManyRequests("at most three lines", 7)
				}
			case *v1.LogOptions:
				if o.Follow {
					return fmt.Errorf("%s of %s is not followed", c.Subresource, c.Resource.Version)
				}
			}
			if c.Subresource == "exec" && c.Object.Spec.Size == "large" {
				return fmt.Errorf("%s/%s is not for %s", c.Namespace, c.Name, c.User.GetName())
			}
			return nil
		})
	c := start(t, s)
	c.create("open")
	c.post(widgetsPath, `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"shut"},"spec":{"size":"large"}}`).want(201)
	config := rest.CopyConfig(c.config)
	config.NextProtos = []string{"http/1.1"}
	upgrading := connect(t, config)
	for name, want := range map[string]int{"open": http.StatusSwitchingProtocols, "shut": http.StatusForbidden} {
		response := upgrading.send(t.Context(), http.MethodGet, widgetsPath+"/"+name+"/exec", nil, "Connection", "Upgrade", "Upgrade", "echo")
		if response.StatusCode != want {
			t.Errorf("%s: %s", name, response.Status)
		}
		response.Body.Close()
	}
	c.get(widgetsPath+"/shut/exec").
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "shut" is forbidden: default/shut is not for `)
	c.get(widgetsPath+"/shut/log?follow=true").refused(403, metav1.StatusReasonForbidden, "log of v1 is not followed")
	c.get(widgetsPath + "/shut/log").want(200)
	c.get(widgetsPath+"/shut/tail?lines=4").refused(429, metav1.StatusReasonTooManyRequests, "at most three lines")
	c.get(widgetsPath+"/none/exec").refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "none" not found`)
}

// tail has options that no package registers.
func tail(_ context.Context, r *annex.ConnectRequest[v1.Widget, TailOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%d lines", r.Options.Lines) }), nil
}

func TestConnect_unregisteredOptions(t *testing.T) {
	t.Parallel()
	s := shop()
	s.Groups[0].Kinds[0] = widgets().Subresources(annex.Connect("tail", tail))
	c := start(t, s)
	c.create("w")
	for _, version := range []string{"v1", "v1beta1"} {
		path := strings.Replace(widgetsPath, "/v1/", "/"+version+"/", 1) + "/w/tail"
		if a := c.get(path + "?lines=7&unknown=1").want(200); string(a.raw) != "7 lines" {
			t.Errorf("%s: %s", version, a.raw)
		}
		c.get(path+"?lines=many").refused(400, metav1.StatusReasonBadRequest, `parameter lines: "many" is not an integer of 64 bits`)
		if a := c.get("/openapi/v3/apis/shop.example.com/" + version).
			want(200); !strings.Contains(
			string(a.raw),
			`{"name":"lines","in":"query"`,
		) {
			t.Errorf("%s: the option is not in OpenAPI", version)
		}
	}
}

func TestConnect_pathBelow(t *testing.T) {
	t.Parallel()
	s := shop()
	s.Groups[0].Kinds[0] = widgets().Subresources(annex.Connect("site",
		func(_ context.Context, r *annex.ConnectRequest[v1.Widget, pathOptions]) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "%s %q", req.Method, r.Options.Path) }), nil
		}).Methods("GET", "POST").Subpaths())
	c := start(t, s)
	c.create("w")
	for path, want := range map[string]string{"": "", "/": "/", "/a/b": "/a/b", "/a/": "/a/", "?path=/evil": ""} {
		if a := c.get(widgetsPath + "/w/site" + path).want(200); string(a.raw) != fmt.Sprintf("GET %q", want) {
			t.Errorf("%q: %s", path, a.raw)
		}
	}
	if a := c.post(widgetsPath+"/w/site/a", "").want(200); string(a.raw) != `POST "/a"` {
		t.Errorf("%s", a.raw)
	}
	c.do(http.MethodDelete, widgetsPath+"/w/site/a", "").want(405)
}
