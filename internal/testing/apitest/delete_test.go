package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

func TestDelete(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	events := c.watch(widgetsPath + "?watch=1&resourceVersion=" + w.ResourceVersion)
	deleted := c.delete(widgetsPath+"/w", nil).want(http.StatusOK).status()
	if deleted.Status != metav1.StatusSuccess || deleted.Details == nil || deleted.Details.Name != "w" ||
		deleted.Details.Group != "shop.example.com" ||
		deleted.Details.Kind != "widgets" ||
		deleted.Details.UID != w.UID {
		t.Errorf("answer: %+v", deleted)
	}
	e := events.want("DELETED w")
	if rv := text(e.Object, "metadata", "resourceVersion"); rv == w.ResourceVersion || rv == "" {
		t.Errorf("the event has the revision %s of the object, not of its deletion", rv)
	}
	c.get(widgetsPath+"/w").refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "w" not found`)
	c.delete(widgetsPath+"/w", nil).refused(404, metav1.StatusReasonNotFound)
	if again := c.create("w"); again.UID == w.UID {
		t.Error("a new object has the old one's uid")
	}
}

func TestDeleteOptions(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	path := widgetsPath + "/w"
	options := func(f fields) fields {
		f["kind"], f["apiVersion"] = "DeleteOptions", "v1"
		return f
	}
	c.delete(path, options(fields{"preconditions": fields{"uid": "another"}})).
		refused(409, metav1.StatusReasonConflict, "the UID in the precondition (another) does not match the UID in record ("+string(w.UID)+")")
	c.delete(path, options(fields{"preconditions": fields{"resourceVersion": "1"}})).
		refused(409, metav1.StatusReasonConflict,
			"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("+w.ResourceVersion+")")
	c.delete(path, options(fields{"propagationPolicy": "Sometimes"})).refused(422, metav1.StatusReasonInvalid, "propagationPolicy")
	c.delete(path, options(fields{"propagationPolicy": "Orphan", "orphanDependents": true})).
		refused(422, metav1.StatusReasonInvalid, "orphanDependents and deletionPropagation cannot be both set")
	c.delete(path, `{"kind":"Widget","apiVersion":"shop.example.com/v1"}`).
		refused(400, metav1.StatusReasonBadRequest, `no kind "Widget" is registered for version "shop.example.com/v1"`)
	c.delete(path, `{"kind":`).refused(400, metav1.StatusReasonBadRequest)
	if now := c.widget("w"); now.ResourceVersion != w.ResourceVersion || now.DeletionTimestamp != nil {
		t.Errorf("a refused delete left something behind: %+v", now)
	}
	c.delete(path, fields{"kind": "DeleteOptions", "apiVersion": "shop.example.com/v1",
		"preconditions": fields{"uid": w.UID, "resourceVersion": w.ResourceVersion}}).
		want(200)
	c.get(path).want(404)
	c.create("w")
	c.do(http.MethodDelete, path+"?propagationPolicy=Background&gracePeriodSeconds=5", nil).want(200)
	c.get(path).want(404)
}

func TestDelete_finalizers(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w", metadata(fields{"finalizers": []string{"shop.example.com/a", "shop.example.com/b"}}))
	path := widgetsPath + "/w"
	events := c.watch(widgetsPath + "?watch=1&resourceVersion=" + w.ResourceVersion)
	got := c.delete(path, nil).want(200).widget()
	if got.DeletionTimestamp == nil || got.DeletionGracePeriodSeconds == nil || *got.DeletionGracePeriodSeconds != 0 || got.Generation != 2 {
		t.Errorf("deleted: %+v", got.ObjectMeta)
	}
	events.want("MODIFIED w")

	// Deleting again changes nothing, and an update cannot undo it.
	again := c.delete(path, nil).want(200).widget()
	if again.ResourceVersion != got.ResourceVersion {
		t.Errorf("a second delete took revision %s after %s", again.ResourceVersion, got.ResourceVersion)
	}
	c.post(widgetsPath, widget("w")).refused(409, metav1.StatusReasonAlreadyExists, "object is being deleted: ")
	c.patch(mergePatch, path, `{"metadata":{"finalizers":["shop.example.com/a","shop.example.com/b","shop.example.com/new"]}}`).
		refused(422, metav1.StatusReasonInvalid, `metadata.finalizers: Forbidden: no new finalizers can be added if the object is being `+
			`deleted, found new finalizers []string{"shop.example.com/new"}`)
	kept := c.patch(mergePatch, path, `{"metadata":{"deletionTimestamp":null,"deletionGracePeriodSeconds":null,`+
		`"finalizers":["shop.example.com/a"]},"spec":{"replicas":7}}`).
		want(200).
		widget()
	if kept.DeletionTimestamp == nil || !kept.DeletionTimestamp.Equal(got.DeletionTimestamp) || *kept.Spec.Replicas != 7 {
		t.Errorf("updated: %+v", kept)
	}
	events.want("MODIFIED w")

	last := c.patch(mergePatch, path, `{"metadata":{"finalizers":null}}`).want(200).widget()
	if len(last.Finalizers) != 0 {
		t.Errorf("the last update: %+v", last.ObjectMeta)
	}
	events.want("DELETED w")
	c.get(path).want(404)
}

func TestDelete_gracePeriod(t *testing.T) {
	t.Parallel()
	c := start(t, shop()) // shelves have 30 seconds
	grace := func(seconds int) fields {
		return fields{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": seconds}
	}
	read := func(a *answer) (m metav1.ObjectMeta) {
		t.Helper()
		obj := metav1.PartialObjectMetadata{}
		decode(t, a.want(200).raw, &obj)
		return obj.ObjectMeta
	}
	path := shelvesPath + "/s"
	c.post(shelvesPath, shelf("s")).want(201)
	rv := c.get(shelvesPath).str("metadata", "resourceVersion")
	events := c.watch(shelvesPath + "?watch=1&resourceVersion=" + rv)

	before := time.Now().Truncate(time.Second)
	first := read(c.delete(path, nil))
	if first.DeletionTimestamp == nil || *first.DeletionGracePeriodSeconds != 30 || first.Generation != 2 ||
		first.DeletionTimestamp.Time.Before(before.Add(30*time.Second)) {
		t.Fatalf("deleted: %+v", first)
	}
	events.want("MODIFIED s")
	if longer := read(c.delete(path, grace(60))); longer.ResourceVersion != first.ResourceVersion {
		t.Errorf("a longer period changed the object: %+v", longer)
	}
	if same := read(c.delete(path, nil)); same.ResourceVersion != first.ResourceVersion {
		t.Errorf("the same period changed the object: %+v", same)
	}
	shorter := read(c.delete(path, grace(10)))
	if *shorter.DeletionGracePeriodSeconds != 10 || !shorter.DeletionTimestamp.Time.Equal(first.DeletionTimestamp.Add(-20*time.Second)) ||
		shorter.Generation != 2 {
		t.Errorf("shortened: %+v after %+v", shorter, first)
	}
	events.want("MODIFIED s")
	c.patch(mergePatch, path, `{"widgets":["still","changes"]}`).want(200)
	events.want("MODIFIED s")
	if last := read(c.delete(path, grace(0))); last.Name != "s" || *last.DeletionGracePeriodSeconds != 0 {
		t.Errorf("deleted: %+v", last)
	}
	events.want("MODIFIED s", "DELETED s")
	c.get(path).want(404)

	// Immediately from the start, in any notation.
	c.post(shelvesPath, shelf("now")).want(201)
	c.do(http.MethodDelete, shelvesPath+"/now?gracePeriodSeconds=0", nil).want(200)
	c.get(shelvesPath + "/now").want(404)

	// A negative period is one second.
	c.post(shelvesPath, shelf("negative")).want(201)
	if m := read(c.delete(shelvesPath+"/negative", grace(-5))); *m.DeletionGracePeriodSeconds != 1 {
		t.Errorf("negative: %+v", m)
	}

	// A finalizer holds the object beyond its period, and the period beyond the finalizer.
	c.post(shelvesPath, shelf("f", metadata(fields{"finalizers": []string{"shop.example.com/wait"}}))).want(201)
	read(c.delete(shelvesPath+"/f", nil))
	held := read(c.delete(shelvesPath+"/f", grace(0)))
	if *held.DeletionGracePeriodSeconds != 0 || len(held.Finalizers) != 1 {
		t.Errorf("held by a finalizer: %+v", held)
	}
	c.patch(mergePatch, shelvesPath+"/f", `{"metadata":{"finalizers":null}}`).want(200)
	c.get(shelvesPath + "/f").want(404)

	c.post(shelvesPath, shelf("g", metadata(fields{"finalizers": []string{"shop.example.com/wait"}}))).want(201)
	read(c.delete(shelvesPath+"/g", nil))
	c.patch(mergePatch, shelvesPath+"/g", `{"metadata":{"finalizers":null}}`).want(200)
	if m := read(c.get(shelvesPath + "/g")); *m.DeletionGracePeriodSeconds != 30 {
		t.Errorf("held by its period: %+v", m)
	}
	c.delete(shelvesPath+"/g", grace(0)).want(200)
	c.get(shelvesPath + "/g").want(404)
}

func TestDeleteAfterGracePeriod(t *testing.T) {
	t.Parallel()
	timed := func() annex.Server {
		return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			widgets().GracePeriod(time.Hour).DeleteAfterGracePeriod(),
		}}}}
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
	second := fields{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1}
	var rv string
	t.Run("while it runs", func(t *testing.T) {
		c := startWith(t, timed(), options)
		w := c.create("w")
		c.create("held", metadata(fields{"finalizers": []string{"shop.example.com/wait"}}))
		c.create("restarted")
		c.create("stays")
		events := c.watch(widgetsPath + "?watch=1&fieldSelector=metadata.name%3Dw&resourceVersion=" + w.ResourceVersion)
		c.delete(widgetsPath+"/w", nil).want(200)
		events.want("MODIFIED w")
		c.delete(widgetsPath+"/w", second).want(200)
		events.want("MODIFIED w", "MODIFIED w", "DELETED w")

		held := c.watch(widgetsPath + "?watch=1&fieldSelector=metadata.name%3Dheld&resourceVersion=" + c.widget("held").ResourceVersion)
		c.delete(widgetsPath+"/held", second).want(200)
		held.want("MODIFIED held")
		if e := held.want("MODIFIED held"); text(e.Object, "metadata", "deletionGracePeriodSeconds") != "0" {
			t.Errorf("at the end of its period, the finalizer does not know: %v", e.Object)
		}
		c.patch(mergePatch, widgetsPath+"/held", `{"metadata":{"finalizers":null}}`).want(200)
		held.want("DELETED held")

		c.delete(widgetsPath+"/restarted", second).want(200)
		c.delete(widgetsPath+"/stays", nil).want(200)
		rv = c.get(widgetsPath).str("metadata", "resourceVersion")
	})
	t.Run("after a restart", func(t *testing.T) {
		c := startWith(t, timed(), options)
		if c.get(widgetsPath+"/restarted").code == http.StatusOK {
			if resumed, whole := c.resume(widgetsPath+"?watch=1&fieldSelector=metadata.name%3Drestarted", rv); whole {
				resumed.want("MODIFIED restarted", "DELETED restarted")
			}
			testwait.Until(t, "the end of its period", func() bool { return c.get(widgetsPath+"/restarted").code == http.StatusNotFound })
		}
		c.get(widgetsPath + "/restarted").want(404)
		if w := c.widget("stays"); *w.DeletionGracePeriodSeconds != 3600 {
			t.Errorf("got %+v", w.ObjectMeta)
		}
	})
}

func TestDeleteCollection(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	fill := func() {
		for _, name := range []string{"a", "b", "c", "d"} {
			size, colour := "small", "red"
			if name > "b" {
				size, colour = "large", "blue"
			}
			c.create(name, metadata(fields{"labels": fields{"colour": colour}}), spec(fields{"size": size}))
		}
	}
	for _, test := range []struct {
		name, query    string
		deleted, stays []string
	}{
		{"all", "", []string{"a", "b", "c", "d"}, nil},
		{"by label", "?labelSelector=colour%3Dred", []string{"a", "b"}, []string{"c", "d"}},
		{"by field", "?fieldSelector=spec.size%3Dlarge", []string{"c", "d"}, []string{"a", "b"}},
		{"by both", "?fieldSelector=metadata.name%3Da&labelSelector=colour%3Dred", []string{"a"}, []string{"b", "c", "d"}},
		{"no match", "?labelSelector=colour%3Dgreen", nil, []string{"a", "b", "c", "d"}},
		{"a limit", "?limit=3", []string{"a", "b", "c"}, []string{"d"}},
		{"a dry run", "?dryRun=All", []string{"a", "b", "c", "d"}, []string{"a", "b", "c", "d"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &client{t, c.config, c.http}
			fill()
			deleted := c.delete(widgetsPath+test.query, nil).want(200)
			if got := deleted.names(); fmt.Sprint(got) != fmt.Sprint(test.deleted) || deleted.str("kind") != "WidgetList" {
				t.Errorf("answered %v, want %v", got, test.deleted)
			}
			if got := c.get(widgetsPath).names(); fmt.Sprint(got) != fmt.Sprint(test.stays) {
				t.Errorf("stays %v, want %v", got, test.stays)
			}
			c.delete(widgetsPath, nil).want(200)
		})
	}
	c.create("a")
	c.create("held", metadata(fields{"finalizers": []string{"shop.example.com/wait"}}))
	c.delete(widgetsPath, fields{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": fields{"uid": "none"}}).
		refused(409, metav1.StatusReasonConflict)
	c.delete(widgetsPath+"?fieldSelector=spec.colour%3Dred", nil).
		refused(400, metav1.StatusReasonBadRequest, "field label not supported: spec.colour")
	c.delete(widgetsPath, nil).want(200)
	if w := c.widget("held"); w.DeletionTimestamp == nil {
		t.Error("a held object is not being deleted")
	}
	c.delete("/apis/shop.example.com/v1/widgets", nil).want(405)
}

// Plugins get a copy of the deleted object, the same one in both phases, and may change it. That holds for upstream's
// handlers and direct ones, for newly written objects and for objects that nothing has decoded.
func TestDelete_pluginsGetTheirOwnCopy(t *testing.T) {
	t.Parallel()
	for name, accept := range map[string]string{"directly": jsonType, "by upstream": askedOfUpstream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen []string
			server := shop()
			about := func(a admission.Attributes) bool {
				return a.GetOperation() == admission.Delete && a.GetResource().Resource == "widgets"
			}
			server.AdmissionPlugins = []annex.AdmissionPlugin{
				{Name: "Spoil", Plugin: annex.Mutating(func(_ context.Context, a admission.Attributes) error {
					if about(a) {
						a.GetOldObject().(*v1.Widget).Labels["colour"] += "-spoilt"
					}
					return nil
				})},
				{Name: "Look", Plugin: annex.Validating(func(_ context.Context, a admission.Attributes) error {
					if about(a) {
						w := a.GetOldObject().(*v1.Widget)
						seen = append(seen, w.Name+" "+w.Labels["colour"]+" "+w.Spec.Size)
						if a.GetObject() != nil || w.ResourceVersion == "" {
							return fmt.Errorf("the object is %v after %v", a.GetObject(), w)
						}
						if w.Annotations["keep"] != "" {
							return errors.New("it is to be kept")
						}
					}
					return nil
				})},
			}
			c := start(t, server)
			red := fields{"labels": fields{"colour": "red"}}
			w := c.create("w", metadata(red))
			c.create("kept", metadata(fields{"labels": fields{"colour": "red"}, "annotations": fields{"keep": "please"}}))
			c.create("held", metadata(fields{"labels": fields{"colour": "red"}, "finalizers": []string{"shop.example.com/wait"}}))
			events := c.watch(widgetsPath + "?watch=1&fieldSelector=metadata.name%3Dw&resourceVersion=" + w.ResourceVersion)
			remove := func(name string) *answer { return c.do(http.MethodDelete, widgetsPath+"/"+name, nil, "Accept", accept) }
			remove("kept").refused(403, metav1.StatusReasonForbidden, "it is to be kept")
			remove("held").want(200)
			remove("w").want(200)
			if e := events.want("DELETED w"); text(e.Object, "metadata", "labels", "colour") != "red" {
				t.Errorf("the event has what a plugin made of it: %v", e.Object)
			}
			for _, name := range []string{"kept", "held"} {
				if got := c.widget(name).Labels["colour"]; got != "red" {
					t.Errorf("%s is stored with what a plugin made of it: %s", name, got)
				}
			}
			if want := []string{"kept red-spoilt medium", "held red-spoilt medium", "w red-spoilt medium"}; !slices.Equal(seen, want) {
				t.Errorf("plugins saw %q, want %q", seen, want)
			}
		})
	}
}

func TestHooks_operations(t *testing.T) {
	t.Parallel()
	notOn(t, againOnEtcd, etcd.Name)
	var j hookLog
	c := startKind(t, widgets().Admit(j.hook("changes"), annex.Create, annex.Update).Admit(j.hook("ends"), annex.Delete).Admit(j.hook("all")))
	c.create("w")
	c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"small"}}`).want(200)
	c.delete(widgetsPath+"/w", nil).want(200)
	j.want(t, "changes CREATE default/w medium after -", "all CREATE default/w medium after -",
		"changes UPDATE default/w small after medium", "all UPDATE default/w small after medium",
		"ends DELETE default/w - after small", "all DELETE default/w - after small")
}
