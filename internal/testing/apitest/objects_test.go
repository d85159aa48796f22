package apitest_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

func TestCreate_serverSetFields(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	created := c.post(widgetsPath, widget(
		"w",
		metadata(
			fields{
				"uid":                        "mine",
				"generation":                 7,
				"creationTimestamp":          "2001-01-01T00:00:00Z",
				"deletionTimestamp":          "2001-01-01T00:00:00Z",
				"deletionGracePeriodSeconds": 3,
				"selfLink":                   "/x",
			},
		),
		spec(fields{"replicas": 2}),
		status(fields{"phase": "Mine"}),
	)).want(http.StatusCreated)
	w := created.widget()
	if w.UID == "" || w.UID == "mine" || w.CreationTimestamp.IsZero() || w.CreationTimestamp.Year() == 2001 || w.ResourceVersion == "" {
		t.Errorf("system fields are the client's: %+v", w.ObjectMeta)
	}
	if w.Generation != 1 || w.DeletionTimestamp != nil || w.DeletionGracePeriodSeconds != nil || w.GetSelfLink() != "" {
		t.Errorf("generation, deletion or selfLink are the client's: %+v", w.ObjectMeta)
	}
	if w.Namespace != "default" || w.Name != "w" {
		t.Errorf("got %s/%s", w.Namespace, w.Name)
	}
	if w.Status != (v1.WidgetStatus{}) {
		t.Errorf("status was created: %+v", w.Status)
	}
	if w.Spec.Size != "medium" || *w.Spec.Replicas != 2 {
		t.Errorf("spec: %+v", w.Spec)
	}
	if got := created.str("apiVersion") + created.str("kind"); got != "shop.example.com/v1Widget" {
		t.Errorf("type: %s", got)
	}
	if created.header.Get("Content-Type") != jsonType || created.header.Get("Cache-Control") != "no-cache, private" ||
		created.header.Get("Audit-Id") == "" {
		t.Errorf("headers: %v", created.header)
	}
	read := c.get(widgetsPath + "/w").want(http.StatusOK)
	if string(read.raw) != string(created.raw) {
		t.Errorf("create answered\n%s\nget\n%s", created.raw, read.raw)
	}
}

func TestCreate_rejections(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("taken")
	for name, test := range map[string]struct {
		path   string
		body   any
		code   int
		reason metav1.StatusReason
		parts  []string
	}{
		"a name that is taken": {widgetsPath, widget("taken"), 409, metav1.StatusReasonAlreadyExists,
			[]string{`widgets.shop.example.com "taken" already exists`}},
		"a resource version": {widgetsPath, widget("w", metadata(fields{"resourceVersion": "1"})), 500, "",
			[]string{"resourceVersion should not be set on objects to be created"}},
		"another namespace": {widgetsPath, widget("w", metadata(fields{"namespace": "other"})), 400, metav1.StatusReasonBadRequest,
			[]string{"the namespace of the provided object does not match the namespace sent on the request"}},
		"no name": {widgetsPath, widget(""), 422, metav1.StatusReasonInvalid,
			[]string{"metadata.name: Required value: name or generateName is required"}},
		"a name in capitals": {widgetsPath, widget("W"), 422, metav1.StatusReasonInvalid,
			[]string{`Widget.shop.example.com "W" is invalid: metadata.name: Invalid value: "W": a lowercase RFC 1123 subdomain must consist of`}},
		"a name with a slash": {widgetsPath, widget("a/b"), 422, metav1.StatusReasonInvalid, []string{`metadata.name: Invalid value: "a/b"`}},
		"a long name": {widgetsPath, widget(strings.Repeat("n", 254)), 422, metav1.StatusReasonInvalid,
			[]string{"must be no more than 253"}},
		"a bad generateName": {widgetsPath, widget("", metadata(fields{"generateName": "No-"})), 422, metav1.StatusReasonInvalid,
			[]string{`metadata.generateName: Invalid value: "No-"`}},
		"a bad label": {widgetsPath, widget("w", metadata(fields{"labels": fields{"a b": "c"}})), 422, metav1.StatusReasonInvalid,
			[]string{`metadata.labels: Invalid value: "a b"`}},
		"a bad annotation": {widgetsPath, widget("w", metadata(fields{"annotations": fields{"a b": "c"}})), 422, metav1.StatusReasonInvalid,
			[]string{`metadata.annotations: Invalid value: "a b"`}},
		"a bad finalizer": {widgetsPath, widget("w", metadata(fields{"finalizers": []string{"a b"}})), 422, metav1.StatusReasonInvalid,
			[]string{"metadata.finalizers"}},
		"a bad owner": {widgetsPath,
			widget("w", metadata(fields{"ownerReferences": []fields{{"apiVersion": "v1", "kind": "", "name": "n", "uid": "u"}}})), 422,
			metav1.StatusReasonInvalid,
			[]string{"metadata.ownerReferences[0].kind: Required value"}},
		"another kind": {widgetsPath, shelf("w"), 400, metav1.StatusReasonBadRequest,
			[]string{`Shelf in version "v1" cannot be handled as a Widget`}},
		"another version": {widgetsPath, widgetBeta("w"), 400, metav1.StatusReasonBadRequest,
			[]string{"the API version in the data (shop.example.com/v1beta1) does not match the expected API version (shop.example.com/v1)"}},
		"an unknown version": {widgetsPath, object("v9", "Widget", "w"), 400, metav1.StatusReasonBadRequest,
			[]string{"shop.example.com/v9"}},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, c.config, c.http}).post(test.path, test.body).refused(test.code, test.reason, test.parts...)
		})
	}
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[taken]" {
		t.Errorf("left behind: %v", got)
	}
}

func TestCreate_typeFromPath(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	if w := c.post(widgetsPath, `{"metadata":{"name":"w"}}`).want(201).widget(); w.Name != "w" {
		t.Errorf("got %+v", w)
	}
}

func TestGenerateName(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	seen := map[string]bool{}
	for range 20 {
		w := c.post(widgetsPath, widget("", metadata(fields{"generateName": "w-"}))).want(201).widget()
		if !strings.HasPrefix(w.Name, "w-") || len(w.Name) != len("w-")+5 || w.GenerateName != "w-" || seen[w.Name] {
			t.Errorf("generated %q", w.Name)
		}
		seen[w.Name] = true
	}
	if w := c.post(widgetsPath, widget("given", metadata(fields{"generateName": "w-"}))).want(201).widget(); w.Name != "given" {
		t.Errorf("a given name was replaced by %q", w.Name)
	}
	c.post(widgetsPath, widget("given", metadata(fields{"generateName": "w-"}))).refused(409, metav1.StatusReasonAlreadyExists)
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w", spec(fields{"replicas": 1}))
	at := func(rv string, f ...map[string]any) map[string]any {
		return widget("w", append(f, metadata(fields{"resourceVersion": rv}))...)
	}
	path := widgetsPath + "/w"

	updated := c.put(path, at(w.ResourceVersion, spec(fields{"replicas": 2}),
		metadata(fields{"labels": fields{"a": "b"}, "generation": 9, "creationTimestamp": nil}))).
		want(200).
		widget()
	if *updated.Spec.Replicas != 2 || updated.Labels["a"] != "b" || updated.Generation != 2 || updated.UID != w.UID ||
		!updated.CreationTimestamp.Equal(&w.CreationTimestamp) {
		t.Errorf("updated: %+v", updated)
	}
	again := c.put(path, at(updated.ResourceVersion, spec(fields{"replicas": 2, "size": "medium"}),
		metadata(fields{"labels": fields{"a": "b"}}))).
		want(200).
		widget()
	if again.ResourceVersion != updated.ResourceVersion {
		t.Errorf("an update that changes nothing took revision %s after %s", again.ResourceVersion, updated.ResourceVersion)
	}

	c.put(path, at("")).
		refused(422, metav1.StatusReasonInvalid, `widgets.shop.example.com "w" is invalid: metadata.resourceVersion: Invalid value: 0: must `+
			`be specified for an update`)
	c.put(path, at(w.ResourceVersion)).
		refused(409, metav1.StatusReasonConflict, `Operation cannot be fulfilled on widgets.shop.example.com "w": the object has been `+
			`modified; please apply your changes to the latest version and try again`)
	c.put(path, at("nonsense")).refused(500, "", `parsing "nonsense": invalid syntax`)
	c.put(path, at(updated.ResourceVersion, metadata(fields{"uid": "another"}))).
		refused(409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition: another, UID in object meta: "+string(w.UID))
	c.put(widgetsPath+"/missing", widget("missing")).refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "missing" not found`)
	c.put(widgetsPath+"/missing", widget("missing", metadata(fields{"resourceVersion": "1"}))).refused(404, metav1.StatusReasonNotFound)
	c.put(path, widget("other")).
		refused(400, metav1.StatusReasonBadRequest, "the name of the object (other) does not match the name on the URL (w)")
	c.put(path, widget("")).refused(400, metav1.StatusReasonBadRequest, "name must be provided")
	c.put(path, at(updated.ResourceVersion, metadata(fields{"namespace": "other"}))).
		refused(400, metav1.StatusReasonBadRequest, "the namespace of the provided object does not match the namespace sent on the request")
	c.put(path, at(updated.ResourceVersion, spec(fields{"size": "huge"}))).
		refused(422, metav1.StatusReasonInvalid, `Widget.shop.example.com "w" is invalid: spec.size: Unsupported value: "huge": supported `+
			`values: "large", "medium", "small"`)

	if now := c.widget("w"); now.ResourceVersion != updated.ResourceVersion {
		t.Errorf("a refused update left something behind: %+v", now)
	}
}

func TestUnrestrictedUpdate_noResourceVersion(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), UnrestrictedUpdate: true})
	c.create("w")
	if w := c.put(widgetsPath+"/w", widget("w", spec(fields{"replicas": 3}))).want(200).widget(); *w.Spec.Replicas != 3 {
		t.Errorf("got %+v", w.Spec)
	}
	c.put(widgetsPath+"/w", widget("w", metadata(fields{"resourceVersion": "1"}))).refused(409, metav1.StatusReasonConflict)
}

// An update that needs no resource version is retried after a concurrent update, beginning with the client's object.
func TestUpdate_retry_startsFromClientsObject(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	var tries atomic.Int32
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Object.Labels["by"] != "slow" {
				return nil
			}
			r.Object.Spec.Options["seen"] += "x"
			delete(r.Object.Labels, "gone")
			if tries.Add(1) == 1 {
				close(entered)
				<-leave
			}
			return nil
		}),
	}}}}
	for _, accept := range []string{jsonType, askedOfUpstream} {
		entered, leave = make(chan struct{}), make(chan struct{})
		tries.Store(0)
		c := startWith(t, server, annex.Options{Storage: memory.Storage(), UnrestrictedUpdate: true})
		uid := c.create("w").UID
		slow := widget(
			"w",
			metadata(fields{"uid": uid, "labels": fields{"by": "slow", "gone": "soon"}}),
			spec(fields{"options": fields{"a": "b"}}),
		)
		answered := make(chan *answer)
		go func() { answered <- c.put(widgetsPath+"/w", slow, "Accept", accept) }()
		<-entered
		c.put(widgetsPath+"/w", widget("w", metadata(fields{"labels": fields{"by": "quick"}}), spec(fields{"options": fields{"c": "d"}}))).
			want(200)
		close(leave)
		w := (<-answered).want(200).widget()
		if tries.Load() != 2 || !maps.Equal(w.Spec.Options, map[string]string{"a": "b", "seen": "x"}) ||
			!maps.Equal(w.Labels, map[string]string{"by": "slow"}) ||
			w.UID != uid {
			t.Errorf("after %d tries: %+v %+v", tries.Load(), w.ObjectMeta, w.Spec)
		}
		if stored := c.widget("w"); !reflect.DeepEqual(stored, w) {
			t.Errorf("stored is %+v, answered %+v", stored, w)
		}
	}
}

func TestGeneration_countsSpecChanges(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("w")
	path := widgetsPath + "/w"
	for _, step := range []struct {
		name, path, patch string
		want              int64
	}{
		{"labels", path, `{"metadata":{"labels":{"a":"b"}}}`, 1},
		{"generation itself", path, `{"metadata":{"generation":5}}`, 1},
		{"the spec", path, `{"spec":{"replicas":5}}`, 2},
		{"the spec to what it is", path, `{"spec":{"replicas":5}}`, 2},
		{"the status", path + "/status", `{"status":{"phase":"Ready"}}`, 2},
		{"the spec at /status", path + "/status", `{"spec":{"replicas":7}}`, 2},
		{"the status at the main endpoint", path, `{"status":{"phase":"Other"}}`, 2},
		{"an empty list for none", path, `{"spec":{"parts":[]}}`, 2},
		{"a default left out", path, `{"spec":{"size":null}}`, 2},
		{"replicas at /scale", path + "/scale", `{"spec":{"replicas":6}}`, 3},
		{"finalizers", path, `{"metadata":{"finalizers":["shop.example.com/wait"]}}`, 3},
	} {
		c.patch(mergePatch, step.path, step.patch).want(200)
		if got := c.widget("w").Generation; got != step.want {
			t.Errorf("after a change of %s: generation %d, want %d", step.name, got, step.want)
		}
	}
	c.delete(path, nil).want(200)
	if got := c.widget("w").Generation; got != 4 {
		t.Errorf("after a delete that waits for a finalizer: generation %d, want 4", got)
	}
}

func TestGeneration_kindsWithoutStatus(t *testing.T) {
	t.Parallel()
	c := startKind(t,
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).WithoutStatus(),
	)
	c.post(shelvesPath, shelf("s")).want(201)
	c.patch(mergePatch, shelvesPath+"/s", `{"metadata":{"labels":{"a":"b"}}}`).want(200)
	if got := c.patch(mergePatch, shelvesPath+"/s", `{"widgets":["w"]}`).want(200).str("metadata", "generation"); got != "2" {
		t.Errorf("a field beside spec: generation %s, want 2", got)
	}
	w := c.create("w", status(fields{"phase": "Ready"}))
	if w.Status.Phase != "Ready" {
		t.Errorf("without /status, the status is part of the object: %+v", w.Status)
	}
	w = c.patch(mergePatch, widgetsPath+"/w", `{"status":{"phase":"Old"}}`).want(200).widget()
	if w.Status.Phase != "Old" || w.Generation != 2 {
		t.Errorf("a status that is part of the object: %+v, generation %d, want 2", w.Status, w.Generation)
	}
	c.get(widgetsPath+"/w/status").refused(404, metav1.StatusReasonNotFound)
}

func TestStatus_isWrittenSeparately(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create(
		"w",
		spec(fields{"replicas": 1}),
		metadata(fields{"labels": fields{"a": "b"}, "annotations": fields{"c": "d"}, "finalizers": []string{"shop.example.com/wait"}}),
	)
	path := widgetsPath + "/w"

	got := c.put(path+"/status", widget(
		"w",
		metadata(
			fields{
				"resourceVersion":            w.ResourceVersion,
				"labels":                     fields{"x": "y"},
				"annotations":                fields{},
				"finalizers":                 []string{},
				"generation":                 12,
				"creationTimestamp":          "2001-01-01T00:00:00Z",
				"deletionTimestamp":          "2001-01-01T00:00:00Z",
				"deletionGracePeriodSeconds": 5,
				"generateName":               "g",
				"ownerReferences":            []fields{{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}},
			},
		),
		spec(fields{"replicas": 50, "size": "huge"}),
		status(fields{"phase": "Ready", "replicas": 1}),
	)).want(200).widget()
	if got.Status.Phase != "Ready" || got.Status.Replicas != 1 {
		t.Errorf("status: %+v", got.Status)
	}
	if *got.Spec.Replicas != 1 || got.Spec.Size != "medium" {
		t.Errorf("/status wrote the spec: %+v", got.Spec)
	}
	if got.Labels["a"] != "b" || got.Labels["x"] != "" || got.Annotations["c"] != "d" || len(got.Finalizers) != 1 ||
		len(got.OwnerReferences) != 0 ||
		got.Generation != 1 || got.CreationTimestamp.Year() == 2001 ||
		got.DeletionTimestamp != nil ||
		got.DeletionGracePeriodSeconds != nil ||
		got.GenerateName != "" {
		t.Errorf("/status wrote the metadata: %+v", got.ObjectMeta)
	}
	got = c.put(path, widget("w", metadata(fields{"resourceVersion": got.ResourceVersion}), status(fields{"phase": "Lost"}))).
		want(200).
		widget()
	if got.Status.Phase != "Ready" || got.Status.Replicas != 1 {
		t.Errorf("the main endpoint wrote the status: %+v", got.Status)
	}
	if len(got.Labels) != 0 || len(got.Finalizers) != 0 || got.Spec.Replicas != nil {
		t.Errorf("an update replaces the rest: %+v", got)
	}
	if read := c.get(path + "/status").want(200).widget(); read.Status.Phase != "Ready" || read.Spec.Size != "medium" {
		t.Errorf("get /status: %+v", read)
	}

	c.put(path+"/status", widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}))).refused(409, metav1.StatusReasonConflict)
	c.put(path+"/status", widget("w")).refused(422, metav1.StatusReasonInvalid, "metadata.resourceVersion")
	c.put(widgetsPath+"/missing/status", widget("missing", metadata(fields{"resourceVersion": "1"}))).
		refused(404, metav1.StatusReasonNotFound)
	c.patch(mergePatch, path+"/status", `{"status":{"phase":"Impossible"}}`).
		refused(422, metav1.StatusReasonInvalid, `status.phase: Invalid value: "Impossible": is impossible`)
	c.post(path+"/status", widget("w")).want(405)
	c.delete(path+"/status", nil).want(405)
}

func TestClusterScopedKind(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	created := c.post(shelvesPath, shelf("s", fields{"widgets": []string{"w"}}, metadata(fields{"namespace": "default"}))).want(201)
	if created.str("metadata", "namespace") != "" {
		t.Errorf("a cluster-scoped object has a namespace: %s", created.raw)
	}
	c.get("/apis/shop.example.com/v1/namespaces/default/shelves").want(404)
	c.get("/apis/shop.example.com/v1/namespaces/default/shelves/s").want(404)
	if got := c.get(shelvesPath).names(); fmt.Sprint(got) != "[s]" {
		t.Errorf("list: %v", got)
	}
	c.get(shelvesPath+"?fieldSelector=metadata.namespace%3Ddefault").
		refused(400, metav1.StatusReasonBadRequest, "field label not supported: metadata.namespace")
	c.get(shelvesPath+"/s/status").refused(404, metav1.StatusReasonNotFound)
}

func TestDryRun_leavesNoTrace(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w", spec(fields{"replicas": 1}))
	c.create("held", metadata(fields{"finalizers": []string{"shop.example.com/wait"}}))
	c.post(shelvesPath, shelf("s")).want(201)
	before := c.get(widgetsPath)
	path := widgetsPath + "/w"
	events := c.watch(widgetsPath + "?watch=1&resourceVersion=" + before.str("metadata", "resourceVersion"))
	const dry = "?dryRun=All"

	created := c.post(widgetsPath+dry, widget("new", spec(fields{"size": "large"}))).want(201)
	if n := created.widget(); n.UID == "" || n.Name != "new" || n.Generation != 1 {
		t.Errorf("dry create: %+v", n)
	}
	if got := created.warnings(); len(got) != 1 {
		t.Errorf("dry create: warnings %q", got)
	}
	c.post(widgetsPath+dry, widget("w")).refused(409, metav1.StatusReasonAlreadyExists)
	c.post(widgetsPath+dry, widget("bad", spec(fields{"size": "huge"}))).refused(422, metav1.StatusReasonInvalid)
	if u := c.put(path+dry, widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}), spec(fields{"replicas": 2}))).
		want(200).
		widget(); *u.Spec.Replicas != 2 ||
		u.Generation != 2 {
		t.Errorf("dry update: %+v", u)
	}
	c.put(path+dry, widget("w", metadata(fields{"resourceVersion": "1"}))).refused(409, metav1.StatusReasonConflict)
	if p := c.patch(mergePatch, path+dry, `{"spec":{"replicas":3}}`).want(200).widget(); *p.Spec.Replicas != 3 {
		t.Errorf("dry patch: %+v", p)
	}
	if a := c.apply(path, "m", widget("w", spec(fields{"size": "small"})), "dryRun=All", "force=true").
		want(200).
		widget(); a.Spec.Size != "small" {
		t.Errorf("dry apply: %+v", a)
	}
	c.apply(widgetsPath+"/applied", "m", widget("applied"), "dryRun=All").want(201)
	if s := c.patch(mergePatch, path+"/status"+dry, `{"status":{"phase":"Dry"}}`).want(200).widget(); s.Status.Phase != "Dry" {
		t.Errorf("dry status: %+v", s)
	}
	c.patch(mergePatch, path+"/scale"+dry, `{"spec":{"replicas":4}}`).want(200)
	c.delete(path+dry, nil).want(200)
	c.delete(widgetsPath+"/held"+dry, nil).want(200)
	c.patch(mergePatch, widgetsPath+"/held"+dry, `{"metadata":{"finalizers":null}}`).want(200)
	c.delete(widgetsPath+dry, nil).want(200)
	c.delete(shelvesPath+"/s"+dry, nil).want(200)
	c.delete(shelvesPath+dry, nil).want(200)
	c.post(widgetsPath+"?dryRun=Some", widget("new")).
		refused(422, metav1.StatusReasonInvalid, `dryRun: Unsupported value: ["Some"]: supported values: "All"`)

	after := c.get(widgetsPath)
	if shared() { // the list's own version is not this server's doing
		before.raw = bytes.Replace(before.raw, []byte(before.str("metadata", "resourceVersion")), nil, 1)
		after.raw = bytes.Replace(after.raw, []byte(after.str("metadata", "resourceVersion")), nil, 1)
	}
	if string(after.raw) != string(before.raw) {
		t.Errorf("dry runs left a trace:\n%s\n%s", before.raw, after.raw)
	}
	if got := c.get(shelvesPath+"/s").str("metadata", "deletionTimestamp"); got != "" {
		t.Errorf("a dry graceful delete left %s", got)
	}
	c.create("last")
	events.want("ADDED last")
}
