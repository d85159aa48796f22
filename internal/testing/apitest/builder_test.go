package apitest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	rulesv1 "github.com/annexapi/annex/internal/testing/shop/rules/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

const queuesPath = "/apis/rules.example.com/v1/namespaces/default/queues"

func queues() *annex.KindBuilder[rulesv1.Queue] {
	return annex.KindOf[rulesv1.Queue, rulesv1.QueueList]("queues", rulesv1.API)
}

func queue(name string, f ...map[string]any) map[string]any {
	return object("v1", "Queue", name, append(f, fields{"apiVersion": "rules.example.com/v1"})...)
}

func TestValidateCreate_onlyCreates(t *testing.T) {
	t.Parallel()
	c := startRules(t, queues().ValidateCreate(func(_ context.Context, q *rulesv1.Queue) field.ErrorList {
		if q.Spec.Owner == "" {
			return field.ErrorList{field.Required(field.NewPath("spec", "owner"), "")}
		}
		return nil
	}))
	c.post(queuesPath, queue("a")).refused(422, metav1.StatusReasonInvalid, "spec.owner: Required value")
	c.apply(queuesPath+"/a", "m", queue("a")).refused(422, metav1.StatusReasonInvalid, "spec.owner: Required value")
	c.post(queuesPath, queue("a", spec(fields{"owner": "me"}))).want(201)
	c.patch(mergePatch, queuesPath+"/a", spec(fields{"owner": nil})).want(200)
}

func TestValidateName_ofCreates(t *testing.T) {
	t.Parallel()
	label := startRules(t, queues().ValidateName(validation.NameIsDNSLabel))
	label.post(queuesPath, queue("a.b")).refused(422, metav1.StatusReasonInvalid, `metadata.name: Invalid value: "a.b"`)
	label.post(queuesPath, queue("", metadata(fields{"generateName": "a.b"}))).
		refused(422, metav1.StatusReasonInvalid, `metadata.generateName: Invalid value: "a.b"`)
	label.post(queuesPath, queue("a")).want(201)

	free := startRules(t, queues().ValidateName(func(string, bool) []string { return nil }))
	free.post(queuesPath, queue("system:A_b")).want(201)
	free.get(queuesPath + "/system:A_b").want(200)
	free.post(queuesPath, queue("a/b")).refused(422, metav1.StatusReasonInvalid, "metadata.name")
}

func TestUnconditionalUpdate_ofAKind(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind annex.Kind
		code int
	}{"default": {queues(), 422}, "unconditional": {queues().UnconditionalUpdate(), 200}} {
		t.Run(name, func(t *testing.T) {
			c := startRules(t, test.kind)
			rv := c.post(queuesPath, queue("a")).want(201).str("metadata", "resourceVersion")
			c.put(queuesPath+"/a", queue("a", spec(fields{"owner": "me"}))).want(test.code)
			c.put(queuesPath+"/a", queue("a", spec(fields{"owner": "you"}), metadata(fields{"resourceVersion": rv}))).
				want(map[int]int{422: 200, 200: 409}[test.code])
		})
	}
}

func TestCreateOnUpdate_ofAKind(t *testing.T) {
	t.Parallel()
	startRules(t, queues()).put(queuesPath+"/a", queue("a")).want(404)
	c := startRules(t, queues().CreateOnUpdate())
	c.put(queuesPath+"/a", queue("b")).want(400)
	made := c.put(queuesPath+"/a", queue("a", spec(fields{"owner": "me"}), status(fields{"phase": "Open"}))).want(201)
	if made.str("metadata", "uid") == "" || made.str("metadata", "generation") != "1" || made.str("status", "phase") != "" {
		t.Errorf("created by an update: %s", made.raw)
	}
	c.put(queuesPath+"/a", queue("a", metadata(fields{"resourceVersion": made.str("metadata", "resourceVersion")}))).want(200)
}

func TestGracePeriodOf_byObject(t *testing.T) {
	t.Parallel()
	c := startRules(t, queues().GracePeriodOf(func(q *rulesv1.Queue) time.Duration {
		if q.Spec.Replicas == nil {
			return 0
		}
		return time.Duration(*q.Spec.Replicas) * time.Second
	}))
	for replicas, want := range map[int]string{7: "7", 40: "40"} {
		name := fmt.Sprintf("q%d", replicas)
		c.post(queuesPath, queue(name, spec(fields{"replicas": replicas}))).want(201)
		if got := c.delete(queuesPath+"/"+name, nil).want(200).str("metadata", "deletionGracePeriodSeconds"); got != want {
			t.Errorf("%s: grace period %q, want %s", name, got, want)
		}
		c.get(queuesPath + "/" + name).want(200)
		if got := c.delete(queuesPath+"/"+name, fields{"gracePeriodSeconds": 3}).
			want(200).
			str("metadata", "deletionGracePeriodSeconds"); got != "3" {
			t.Errorf("%s: shorter grace period %q, want 3", name, got)
		}
	}
	for _, options := range []any{nil, fields{"gracePeriodSeconds": 30}} {
		c.post(queuesPath, queue("none")).want(201)
		c.delete(queuesPath+"/none", options).want(200)
		c.get(queuesPath + "/none").want(404)
	}
}

func TestPrepareForStatus_changesTheStatus(t *testing.T) {
	t.Parallel()
	c := startRules(t, queues().PrepareForStatus(func(_ context.Context, q, old *rulesv1.Queue) {
		q.Status.Changes = old.Status.Changes + 1
		if q.Spec.Owner != old.Spec.Owner {
			q.Status.Phase = "the owner is the client's"
		}
	}))
	c.post(queuesPath, queue("a", spec(fields{"owner": "me"}))).want(201)
	c.patch(mergePatch, queuesPath+"/a/status", fields{"spec": fields{"owner": "you"}, "status": fields{"phase": "Open"}}).want(200)
	c.apply(queuesPath+"/a/status", "m", queue("a", status(fields{"phase": "Shut"})), "force=true").want(200)
	c.patch(mergePatch, queuesPath+"/a", spec(fields{"owner": "her"})).want(200)
	got := c.get(queuesPath + "/a").want(200)
	if got.str("status", "changes") != "2" || got.str("status", "phase") != "Shut" {
		t.Errorf("status: %s", got.raw)
	}
}

func TestScale_selectorOfLabels(t *testing.T) {
	t.Parallel()
	c := startRules(t, queues().Scale(".spec.replicas", ".status.replicas", ".spec.selector"))
	for name, test := range map[string]struct {
		selector any
		want     string
	}{
		"none":   {nil, ""}, // nothing selects: no autoscaler counts pods by it
		"labels": {fields{"matchLabels": fields{"b": "2", "a": "1"}}, "a=1,b=2"},
		"set":    {fields{"matchExpressions": []fields{{"key": "a", "operator": "In", "values": []string{"2", "1"}}}}, "a in (1,2)"},
	} {
		c.post(queuesPath, queue(name, spec(fields{"replicas": 2, "selector": test.selector}))).want(201)
		if got := c.get(queuesPath+"/"+name+"/scale").want(200).str("status", "selector"); got != test.want {
			t.Errorf("%s: selector %q, want %q", name, got, test.want)
		}
		if got := c.patch(mergePatch, queuesPath+"/"+name+"/scale", spec(fields{"replicas": 3})).
			want(200).
			str("status", "selector"); got != test.want {
			t.Errorf("%s: selector after scaling %q, want %q", name, got, test.want)
		}
	}
}

func TestPart_putAndPatch(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 20)
	c := startRules(t, queues().
		ValidateUpdate(func(_ context.Context, q, old *rulesv1.Queue) field.ErrorList {
			if q.Spec.Owner != old.Spec.Owner {
				return field.ErrorList{field.Forbidden(field.NewPath("spec", "owner"), "use /owner")}
			}
			return nil
		}).
		Admit(func(_ context.Context, r annex.Request[rulesv1.Queue]) error {
			if r.Subresource != "" {
				seen <- fmt.Sprintf("%s %s %s->%s", r.Operation, r.Subresource, r.Old.Spec.Owner, r.Object.Spec.Owner)
			}
			return nil
		}).
		Subresources(annex.Part("owner", func(_ context.Context, q, sent *rulesv1.Queue) { q.Spec.Owner = sent.Spec.Owner }).
			Validate(func(_ context.Context, q, old *rulesv1.Queue) field.ErrorList {
				if q.Spec.Owner == "" {
					return field.ErrorList{field.Required(field.NewPath("spec", "owner"), "it had "+old.Spec.Owner)}
				}
				return nil
			})))
	path := queuesPath + "/a/owner"
	c.post(queuesPath, queue("a", spec(fields{"owner": "ann", "replicas": 1}))).want(201)
	c.patch(mergePatch, queuesPath+"/a", spec(fields{"owner": "bob"})).refused(422, metav1.StatusReasonInvalid, "use /owner")

	got := c.get(path).want(200)
	if got.str("kind") != "Queue" || got.str("spec", "owner") != "ann" {
		t.Errorf("get: %s", got.raw)
	}
	patched := c.patch(mergePatch, path, fields{"metadata": fields{"labels": fields{"a": "b"}},
		"spec": fields{"owner": "bob", "replicas": 9}, "status": fields{"phase": "Open"}}).
		want(200)
	if patched.str("spec", "owner") != "bob" || patched.str("spec", "replicas") != "1" || patched.str("status", "phase") != "" ||
		patched.str("metadata", "labels") != "" || patched.str("metadata", "generation") != "2" {
		t.Errorf("a patch changed more than its part, or less: %s", patched.raw)
	}
	c.patch(mergePatch, path, spec(fields{"owner": nil})).refused(422, metav1.StatusReasonInvalid, "spec.owner: Required value: it had bob")
	rv := patched.str("metadata", "resourceVersion")
	c.put(path, queue("a", spec(fields{"owner": "cat"}), metadata(fields{"resourceVersion": rv}))).want(200)
	c.put(path, queue("a", spec(fields{"owner": "dan"}), metadata(fields{"resourceVersion": rv}))).refused(409, metav1.StatusReasonConflict)
	c.apply(path, "m", queue("a", spec(fields{"owner": "eve"}))).refused(409, metav1.StatusReasonConflict)
	if got := c.apply(path, "m", queue("a", spec(fields{"owner": "eve"})), "force=true").want(200); got.str("spec", "owner") != "eve" {
		t.Errorf("applied: %s", got.raw)
	}
	c.put(queuesPath+"/none/owner", queue("none", spec(fields{"owner": "x"}))).want(404)
	c.post(path, queue("a")).want(405)
	if got := <-seen; got != "UPDATE owner ann->bob" {
		t.Errorf("the hook saw %q", got)
	}
}

func TestClusterScoped_factsOfNamespacedKinds(t *testing.T) {
	t.Parallel()
	c := startRules(t, queues().ClusterScoped())
	const path = "/apis/rules.example.com/v1/queues"
	c.post(path, queue("a")).want(201)
	if got := c.get(path + "/a").want(200); got.str("metadata", "namespace") != "" {
		t.Errorf("got %s", got.raw)
	}
	c.get(queuesPath + "/a").want(404)
}

// An eviction belongs to the group policy, and a pod to the core group.
func TestMessagesOf_anotherGroup(t *testing.T) {
	t.Parallel()
	const widgetPath = "/apis/shop.example.com/v1/namespaces/default/widgets/w"
	pack := func(_ context.Context, r *annex.ActionRequest[v1.Widget, markedv1.Packing]) (*markedv1.Packing, error) {
		return r.Object, nil
	}
	label := func(_ context.Context, r *annex.ActionRequest[v1.Widget, markedv1.Relabelling]) (*metav1.Status, error) {
		return &metav1.Status{Status: metav1.StatusSuccess, Message: r.Object.Label + " " + r.Object.Name}, nil
	}
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Subresources(
		annex.Action("packing", pack).MessagesOf(markedv1.API),
		annex.Action("label", label).MessagesOf(markedv1.API).On(annex.Create, annex.Update),
	)
	groups := map[string][]annex.Group{
		"alone":             {{Name: "shop.example.com", Kinds: []annex.Kind{kind}}},
		"beside that group": append([]annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}, markedShop().Groups...),
	}
	for name, groups := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, annex.Server{Name: "messages", Groups: groups})
			c.post("/apis/shop.example.com/v1/namespaces/default/widgets", widget("w")).want(201)
			for _, body := range []fields{
				{"packer": "ann"},
				{"packer": "ann", "apiVersion": "marked.shop.example.com/v1", "kind": "Packing"},
			} {
				answer := c.post(widgetPath+"/packing", body).want(201)
				for field, want := range map[string]string{"apiVersion": "marked.shop.example.com/v1", "kind": "Packing", "layers": "2",
					"handling": "soft"} {
					if got := answer.str(field); got != want {
						t.Errorf("%s is %q, want %q", field, got, want)
					}
				}
			}
			c.post(widgetPath+"/packing", fields{"packer": "ann", "layers": -5}).
				refused(422, metav1.StatusReasonInvalid, `Packing.marked.shop.example.com "w" is invalid: layers: Invalid value: -5`)
			c.post(widgetPath+"/packing", fields{"packer": "ann", "apiVersion": "shop.example.com/v1", "kind": "Packing"}).want(400)
			if got := c.put(widgetPath+"/label", fields{"label": "ll", "metadata": fields{"name": "w"}}).want(200).status().Message; got != "ll w" {
				t.Errorf("got %q, want ll w", got)
			}
			for _, resource := range c.get("/apis/shop.example.com/v1").want(200).object()["resources"].([]any) {
				if r := resource.(map[string]any); r["name"] == "widgets/packing" &&
					(r["group"] != "marked.shop.example.com" || r["kind"] != "Packing") {
					t.Errorf("discovery shows %v", r)
				}
			}
			if got := c.get("/openapi/v3/apis/shop.example.com/v1").want(200).
				str("components", "schemas", "com.example.shop.marked.v1.Packing", "properties", "layers", "minimum"); got != "1" {
				t.Errorf("minimum of layers in OpenAPI is %q, want 1", got)
			}
		})
	}
}

func TestMessagesOf_mistakes(t *testing.T) {
	t.Parallel()
	none := func(context.Context, *annex.ActionRequest[v1.Widget, markedv1.Packing]) (*v1.Widget, error) {
		return nil, nil
	}
	own := func(context.Context, *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Inspection, error) {
		return nil, nil
	}
	for want, sub := range map[string]annex.SubresourceOf[v1.Widget]{
		"MessagesOf: the answer v1.Widget has another group": annex.Action("a",
			none).MessagesOf(markedv1.API),
		"the package of marked.shop.example.com/v1 in MessagesOf does not register Go type v1.Inspection": annex.Action("a",
			own).MessagesOf(markedv1.API),
	} {
		kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Subresources(sub)
		_, err := annex.New(
			t.Context(),
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}},
			annex.Options{},
		)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
