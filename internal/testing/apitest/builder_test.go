package apitest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	rulesv1 "github.com/annexapi/annex/internal/testing/shop/rules/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
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

// A PUT that creates is authorized and admitted as a create, as upstream's handler does.
func TestCreateOnUpdate_withoutTheRightToCreate_isForbidden(t *testing.T) {
	t.Parallel()
	admitted := make(chan annex.Operation, 10)
	c := startRules(t, queues().CreateOnUpdate().Admit(func(_ context.Context, r annex.Request[rulesv1.Queue]) error {
		admitted <- r.Operation
		return nil
	}))
	c.put(queuesPath+"/made", queue("made")).want(201)
	if operation := <-admitted; operation != annex.Create {
		t.Errorf("admitted as %s", operation)
	}
	rules := []any{fields{"apiGroups": []any{"rules.example.com"}, "resources": []any{"queues"}, "verbs": []any{"update", "get"}}}
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", object("v1", "ClusterRole", "writer",
		fields{"apiVersion": "rbac.authorization.k8s.io/v1", "rules": rules})).want(201)
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object("v1", "ClusterRoleBinding", "writer", fields{
		"apiVersion": "rbac.authorization.k8s.io/v1",
		"roleRef":    fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"},
		"subjects":   []any{fields{"kind": "ServiceAccount", "namespace": "default", "name": "anna"}},
	})).want(201)
	c.post(accountsPath, account("anna")).want(201)
	anna := c.as("anna")
	testwait.Until(t, "anna may update", func() bool {
		return anna.get(queuesPath+"/made").code == 200
	})
	anna.put(queuesPath+"/missing", queue("missing")).refused(403, metav1.StatusReasonForbidden, `cannot create resource "queues"`)
	c.get(queuesPath + "/missing").want(404)
}

func TestCanonicalize_afterValidation(t *testing.T) {
	t.Parallel()
	var admitted sync.Map
	c := startRules(t, queues().
		Validate(func(_ context.Context, q *rulesv1.Queue) field.ErrorList {
			if q.Spec.Owner == "me" {
				return field.ErrorList{field.Invalid(field.NewPath("spec", "owner"), q.Spec.Owner, "the canonical form is not validated")}
			}
			return nil
		}).
		Canonicalize(func(q *rulesv1.Queue) { q.Spec.Owner = strings.ToLower(q.Spec.Owner) }).
		Admit(func(_ context.Context, r annex.Request[rulesv1.Queue]) error {
			admitted.Store(r.Object.Spec.Owner, true)
			return nil
		}))
	owner := func(a *answer) string { return a.str("spec", "owner") }
	for name, got := range map[string]string{
		"create": owner(c.post(queuesPath, queue("a", spec(fields{"owner": "Me"}))).want(201)),
		"read":   owner(c.get(queuesPath + "/a").want(200)),
		"patch":  owner(c.patch(mergePatch, queuesPath+"/a", spec(fields{"owner": "ME"})).want(200)),
		"apply":  owner(c.apply(queuesPath+"/b", "m", queue("b", spec(fields{"owner": "mE"}))).want(201)),
	} {
		if got != "me" {
			t.Errorf("%s: %q", name, got)
		}
	}
	c.post(queuesPath, queue("c", spec(fields{"owner": "me"}))).refused(422, metav1.StatusReasonInvalid, "spec.owner")
	if _, ok := admitted.Load("me"); !ok {
		t.Error("admission has not seen the canonical form")
	}
	before := c.get(queuesPath+"/a").str("metadata", "generation")
	if after := c.patch(mergePatch, queuesPath+"/a", spec(fields{"owner": "mE"})).want(200).str("metadata", "resourceVersion"); after !=
		c.get(queuesPath+"/a").str("metadata", "resourceVersion") {
		t.Errorf("a patch to another form of the same value is a change: generation %s", before)
	}
}

func TestAfterWrites_areCalledOnceForEachWrite(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var calls []string
	note := func(what string) func(q *rulesv1.Queue) {
		return func(q *rulesv1.Queue) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, what+" "+q.Name+" "+q.Spec.Owner)
		}
	}
	c := startRules(t, queues().CreateOnUpdate().
		AfterCreate(note("created")).AfterUpdate(note("updated")).AfterDelete(note("deleted")).
		Validate(func(_ context.Context, q *rulesv1.Queue) field.ErrorList {
			if q.Spec.Owner == "nobody" {
				return field.ErrorList{field.Required(field.NewPath("spec", "owner"), "")}
			}
			return nil
		}))
	owner := func(name string) map[string]any { return spec(fields{"owner": name}) }
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"create", func() { c.post(queuesPath, queue("a", owner("me"))).want(201) }, "created a me"},
		{"a name that is taken", func() { c.post(queuesPath, queue("a")).want(409) }, ""},
		{"dry run", func() { c.post(queuesPath+"?dryRun=All", queue("d")).want(201) }, ""},
		{"refused", func() { c.patch(mergePatch, queuesPath+"/a", owner("nobody")).want(422) }, ""},
		{"patch", func() { c.patch(mergePatch, queuesPath+"/a", owner("you")).want(200) }, "updated a you"},
		{"dry run of a patch", func() { c.patch(mergePatch, queuesPath+"/a?dryRun=All", owner("x")).want(200) }, ""},
		{"status", func() { c.patch(mergePatch, queuesPath+"/a/status", status(fields{"phase": "Open"})).want(200) }, "updated a you"},
		{"apply", func() { c.apply(queuesPath+"/b", "m", queue("b", owner("b"))).want(201) }, "created b b"},
		{"create on update", func() { c.put(queuesPath+"/c", queue("c", owner("c"))).want(201) }, "created c c"},
		{"dry run of a deletion", func() { c.delete(queuesPath+"/a", fields{"dryRun": []any{"All"}}).want(200) }, ""},
		{"delete", func() { c.delete(queuesPath+"/a", nil).want(200) }, "deleted a you"},
		{"delete what is missing", func() { c.delete(queuesPath+"/a", nil).want(404) }, ""},
		{"a finalizer", func() {
			c.patch(mergePatch, queuesPath+"/b", metadata(fields{"finalizers": []any{"example.com/wait"}})).want(200)
			c.delete(queuesPath+"/b", nil).want(200)
		}, "updated b b"},
		{"its last finalizer", func() {
			c.patch(mergePatch, queuesPath+"/b", metadata(fields{"finalizers": nil})).want(200)
		}, "deleted b b"},
		{"delete all", func() { c.delete(queuesPath, nil).want(200) }, "deleted c c"},
	} {
		step.do()
		mu.Lock()
		if got := strings.Join(calls, ", "); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		calls = nil
		mu.Unlock()
	}
}

func TestOwnVersion_isShownAlone(t *testing.T) {
	t.Parallel()
	server := annex.Server{
		Name:   "shop",
		Groups: []annex.Group{{Name: "rules.example.com", Kinds: []annex.Kind{queues()}}},
	}
	server.Version = "v3.14.1"
	if got := startWith(t, server, annex.Options{Storage: memory.Storage()}).get("/version"); got.str("major") != "1" ||
		!strings.HasSuffix(got.str("gitVersion"), "+annex.shop.v3.14.1") {
		t.Errorf("without OwnVersion: %s", got.raw)
	}
	server.OwnVersion = true
	got := startWith(t, server, annex.Options{Storage: memory.Storage()}).get("/version")
	for field, want := range map[string]string{"major": "3", "minor": "14", "gitVersion": "v3.14.1"} {
		if got.str(field) != want {
			t.Errorf("%s: %s", field, got.raw)
		}
	}
	for _, wrong := range []string{"", "3.14.1", "v3", "three"} {
		server.Version = wrong
		if _, err := annex.Define(server); err == nil || !strings.Contains(err.Error(), "is not a semantic version such as v1.2.0") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
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
