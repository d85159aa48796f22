package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/memory"
)

// hookLog records the calls of hooks.
type hookLog struct {
	mu      sync.Mutex
	entries []string
}

func (j *hookLog) hook(name string) annex.AdmitFunc[v1.Widget] {
	return func(_ context.Context, r annex.Request[v1.Widget]) error {
		size := func(w *v1.Widget) string {
			if w == nil {
				return "-"
			}
			replicas := ""
			if w.Spec.Replicas != nil {
				replicas = fmt.Sprint(*w.Spec.Replicas)
			}
			return w.Spec.Size + replicas + w.Status.Phase
		}
		entry := fmt.Sprintf("%s %s %s/%s", name, r.Operation, r.Namespace, r.Name)
		if r.Subresource != "" {
			entry += "/" + r.Subresource
		}
		entry += fmt.Sprintf(" %s after %s", size(r.Object), size(r.Old))
		if r.DryRun {
			entry += " dry"
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.entries = append(j.entries, entry+" by "+r.User.GetName())
		return nil
	}
}

func (j *hookLog) want(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range want {
		want[i] += " by annex-admin"
	}
	if !slices.Equal(j.entries, want) {
		t.Errorf("hooks were asked\n%s\nwant\n%s", strings.Join(j.entries, "\n"), strings.Join(want, "\n"))
	}
	j.entries = nil
}

func TestHooks_seeEveryWriteOfTheirKind(t *testing.T) {
	t.Parallel()
	notOn(t, againOnEtcd, etcd.Name)
	var j hookLog
	c := startKind(t, widgets().Mutate(j.hook("mutate")).Admit(j.hook("admit")),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped())
	path := widgetsPath + "/w"

	c.create("w")
	j.want(t, "mutate CREATE default/w medium after -", "admit CREATE default/w medium after -")
	w := c.post(widgetsPath, widget("", metadata(fields{"generateName": "g-"}))).want(201).widget()
	j.entries = slices.DeleteFunc(j.entries, func(e string) bool { return strings.HasPrefix(e, "mutate") })
	j.want(t, "admit CREATE default/"+w.Name+" medium after -")
	rv := c.widget("w").ResourceVersion
	c.put(path, widget("w", metadata(fields{"resourceVersion": rv}), spec(fields{"size": "large"}))).want(200)
	j.want(t, "mutate UPDATE default/w large after medium", "admit UPDATE default/w large after medium")
	c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"size":"small"}}`).want(200)
	j.want(t, "mutate UPDATE default/w small after large", "admit UPDATE default/w small after large")
	c.apply(path, "m", widget("w", spec(fields{"replicas": 1}))).want(200)
	j.want(t, "mutate UPDATE default/w small1 after small", "admit UPDATE default/w small1 after small")
	c.apply(widgetsPath+"/applied", "m", widget("applied")).want(201)
	j.want(t, "mutate CREATE default/applied medium after -", "admit CREATE default/applied medium after -")
	c.patch(mergePatch, path+"/status", `{"status":{"phase":"Ready"}}`).want(200)
	j.want(t, "mutate UPDATE default/w/status small1Ready after small1", "admit UPDATE default/w/status small1Ready after small1")
	for i, scale := range []string{path + "/scale", widgetsBetaPath + "/w/scale"} {
		c.patch(mergePatch, scale, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2+i)).want(200)
		j.want(t, fmt.Sprintf("admit UPDATE default/w/scale small%dReady after small%dReady", 2+i, 1+i))
	}
	c.patch(mergePatch, path+"?dryRun=All", `{"spec":{"size":"large"}}`).want(200)
	j.want(t, "mutate UPDATE default/w large3Ready after small3Ready dry", "admit UPDATE default/w large3Ready after small3Ready dry")
	c.patch(mergePatch, path+"/scale?dryRun=All", `{"spec":{"replicas":9}}`).want(200)
	j.want(t, "admit UPDATE default/w/scale small9Ready after small3Ready dry")
	c.delete(path+"?dryRun=All", nil).want(200)
	j.want(t, "admit DELETE default/w - after small3Ready dry")
	c.delete(path, nil).want(200)
	j.want(t, "admit DELETE default/w - after small3Ready")
	c.delete(widgetsPath+"?fieldSelector=metadata.name%3Dapplied", nil).want(200)
	j.want(t, "admit DELETE default/applied - after medium")

	c.get(widgetsPath).want(200)
	c.post(shelvesPath, shelf("s")).want(201)
	c.delete(shelvesPath+"/s", nil).want(200)
	c.post(widgetsPath, widget("bad", spec(fields{"size": "huge"}))).want(422)
	j.want(t, "mutate CREATE default/bad huge after -")
	c.delete(widgetsPath+"/missing", nil).want(404)
	c.patch(mergePatch, widgetsPath+"/missing", `{}`).want(404)
	j.want(t)
}

func TestHooks_rejections(t *testing.T) {
	t.Parallel()
	frozen := func(_ context.Context, r annex.Request[v1.Widget]) error {
		w := r.Object
		if w == nil {
			w = r.Old
		}
		switch {
		case w.Spec.Options["teapot"] != "":
			return apierrors.NewTooManyRequests("brewing", 7)
		case w.Spec.Options["wrapped"] != "":
			return fmt.Errorf("wrapped: %w", apierrors.NewConflict(schema.GroupResource{Resource: "kettles"}, "k", errors.New("hot")))
		case r.Operation == annex.Delete && w.Spec.Options["keep"] != "":
			return errors.New("it is to be kept")
		case w.Spec.Replicas != nil && *w.Spec.Replicas > 10:
			return errors.New("no more than 10 may be had")
		case w.Status.Phase == "Forbidden":
			return errors.New("no such phase")
		}
		return nil
	}
	c := startKind(t, widgets().Admit(frozen))
	path := widgetsPath + "/w"
	c.create("w", spec(fields{"replicas": 1, "options": fields{"keep": "me"}}))
	const ten = `widgets.shop.example.com "w" is forbidden: no more than 10 may be had`
	s := c.post(widgetsPath, widget("new", spec(fields{"replicas": 11}))).
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "new" is forbidden: no more than 10 may be had`)
	if s.Details == nil || s.Details.Name != "new" || s.Details.Group != "shop.example.com" || s.Details.Kind != "widgets" {
		t.Errorf("details: %+v", s.Details)
	}
	c.post(widgetsPath, widget("", metadata(fields{"generateName": "g-"}), spec(fields{"replicas": 11}))).
		refused(403, metav1.StatusReasonForbidden, "no more than 10")
	c.put(path, widget("w", metadata(fields{"resourceVersion": c.widget("w").ResourceVersion}), spec(fields{"replicas": 11}))).
		refused(403, metav1.StatusReasonForbidden, ten)
	c.patch(mergePatch, widgetsBetaPath+"/w", `{"spec":{"replicas":11}}`).refused(403, metav1.StatusReasonForbidden, ten)
	c.apply(path, "m", widget("w", spec(fields{"replicas": 11})), "force=true").refused(403, metav1.StatusReasonForbidden, ten)
	c.patch(mergePatch, path+"/scale", `{"spec":{"replicas":11}}`).refused(403, metav1.StatusReasonForbidden, ten)
	c.patch(mergePatch, widgetsBetaPath+"/w/scale", `{"spec":{"replicas":11}}`).refused(403, metav1.StatusReasonForbidden, ten)
	c.patch(mergePatch, path+"/status", `{"status":{"phase":"Forbidden"}}`).
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "w" is forbidden: no such phase`)
	c.delete(path, nil).refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "w" is forbidden: it is to be kept`)
	c.delete(widgetsPath, nil).refused(403, metav1.StatusReasonForbidden, "it is to be kept")
	c.post(widgetsPath+"?dryRun=All", widget("new", spec(fields{"replicas": 11}))).refused(403, metav1.StatusReasonForbidden)

	teapot := c.post(widgetsPath, widget("t", spec(fields{"options": fields{"teapot": "1"}})))
	if s := teapot.refused(
		429,
		metav1.StatusReasonTooManyRequests,
		"brewing",
	); s.Details == nil || s.Details.RetryAfterSeconds != 7 ||
		teapot.header.Get("Retry-After") != "7" {
		t.Errorf("a status of the hook's own: %s", teapot.raw)
	}
	c.post(widgetsPath, widget("t", spec(fields{"options": fields{"wrapped": "1"}}))).
		refused(409, metav1.StatusReasonConflict, `wrapped: Operation cannot be fulfilled on kettles "k": hot`)
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[w]" || *c.widget("w").Spec.Replicas != 1 {
		t.Errorf("left behind: %v", got)
	}
}

func TestHooks_mutateBeforeValidation(t *testing.T) {
	t.Parallel()
	c := startKind(t, widgets().Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error {
		if r.Object.Spec.Options["fix"] != "" {
			r.Object.Spec.Size = "large"
		}
		if r.Object.Spec.Options["spoil"] != "" {
			r.Object.Spec.Size = "spoilt"
		}
		if r.Object.Spec.Options["refuse"] != "" {
			return errors.New("refused")
		}
		if r.Subresource == "status" {
			r.Object.Status.Phase += "!"
		}
		return nil
	}).Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
		if r.Object != nil {
			r.Object.Spec.Size = "small" // has no effect
		}
		return nil
	}))
	if w := c.create("w", spec(fields{"size": "huge", "options": fields{"fix": "1"}})); w.Spec.Size != "large" {
		t.Errorf("created: %+v", w.Spec)
	}
	if w := c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"small"}}`).want(200).widget(); w.Spec.Size != "large" {
		t.Errorf("patched: %+v", w.Spec)
	}
	if w := c.patch(mergePatch, widgetsPath+"/w/status", `{"status":{"phase":"Ready"}}`).want(200).widget(); w.Status.Phase != "Ready!" {
		t.Errorf("status: %+v", w.Status)
	}
	c.post(widgetsPath, widget("spoilt", spec(fields{"options": fields{"spoil": "1"}}))).
		refused(422, metav1.StatusReasonInvalid, `spec.size: Unsupported value: "spoilt"`)
	c.post(widgetsPath, widget("refused", spec(fields{"options": fields{"refuse": "1"}}))).
		refused(403, metav1.StatusReasonForbidden, `widgets.shop.example.com "refused" is forbidden: refused`)
	c.delete(widgetsPath+"/w", nil).want(200)
}

func TestHooks_order(t *testing.T) {
	t.Parallel()
	stop := errors.New("the first said no")
	var second atomic.Bool
	c := startKind(t, widgets().
		Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Name == "no" {
				return stop
			}
			return nil
		}).
		Admit(func(context.Context, annex.Request[v1.Widget]) error {
			second.Store(true)
			return nil
		}))
	c.post(widgetsPath, widget("no")).refused(403, metav1.StatusReasonForbidden, stop.Error())
	if second.Load() {
		t.Error("the second hook was asked")
	}
	c.create("yes")
	if !second.Load() {
		t.Error("the second hook was not asked")
	}
}

func TestHooks_useTheirServer(t *testing.T) {
	t.Parallel()
	c := startKind(t,
		widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			shelves, err := annex.ListerFor[v1.Shelf](env)
			if err != nil {
				return nil, err
			}
			client, err := dynamic.NewForConfig(env.ClientConfig())
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, r annex.Request[v1.Widget]) error {
				if r.Operation != annex.Create {
					return nil
				}
				name := r.Object.Spec.Options["shelf"]
				if _, err := client.Resource(v1.API().GroupVersion.WithResource("shelves")).Get(ctx, name, metav1.GetOptions{}); err != nil {
					return err
				}
				// The cache may be slightly behind.
				all, err := shelves.List(ctx, "", labels.Everything())
				if err != nil {
					return err
				}
				if len(all) > 1 {
					return fmt.Errorf("%d shelves", len(all))
				}
				return nil
			}, nil
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	)
	on := func(shelf string) map[string]any { return spec(fields{"options": fields{"shelf": shelf}}) }
	c.post(widgetsPath, widget("w", on("missing"))).refused(404, metav1.StatusReasonNotFound, `shelves.shop.example.com "missing" not found`)
	c.post(shelvesPath, shelf("there")).want(201)
	c.create("w", on("there"))
}

func TestListersReadWhatIsStored(t *testing.T) {
	t.Parallel()
	var shelves *annex.Lister[v1.Shelf]
	c := startKind(t,
		widgets().AdmitCreateWith(func(env *annex.Env) (annex.AdmitCreateFunc[v1.Widget], error) {
			var err error
			if shelves, err = annex.ListerFor[v1.Shelf](env); err != nil {
				return nil, err
			}
			return func(ctx context.Context, r annex.Request[v1.Widget], existing []*v1.Widget) error {
				on := r.Object.Spec.Options["shelf"]
				if _, err := shelves.GetLatest(ctx, "", on); err != nil {
					return err
				}
				all, err := shelves.ListLatest(ctx, "", nil)
				if err != nil {
					return err
				}
				if len(existing) >= len(all) {
					return fmt.Errorf("%d widgets for %d shelves", len(existing), len(all))
				}
				return nil
			}, nil
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	)
	on := func(shelf string) map[string]any { return spec(fields{"options": fields{"shelf": shelf}}) }
	c.post(widgetsPath, widget("w", on("missing"))).refused(404, metav1.StatusReasonNotFound, `shelves.shop.example.com "missing" not found`)
	// Acknowledged writes are seen, however often.
	for i := range 20 {
		name := fmt.Sprint("s", i)
		c.post(shelvesPath, shelf(name)).want(201)
		c.create("w"+name, on(name))
		c.post(widgetsPath, widget("one-more", on(name))).
			refused(403, metav1.StatusReasonForbidden, fmt.Sprintf("%d widgets for %d shelves", i+1, i+1))
		c.post(widgetsPath+"?dryRun=All", widget("one-more", on(name))).refused(403, metav1.StatusReasonForbidden)
	}
	all, err := shelves.List(t.Context(), "", nil)
	if err != nil || len(all) == 0 {
		t.Errorf("a nil selector: %d shelves, %v", len(all), err)
	}
	if labelled, err := shelves.ListLatest(
		t.Context(),
		"",
		labels.SelectorFromSet(labels.Set{"no": "such"}),
	); err != nil ||
		len(labelled) != 0 {
		t.Errorf("by a label that none has: %d shelves, %v", len(labelled), err)
	}
	widgetsOf := func(namespace string) int {
		return len(c.get(strings.Replace(widgetsPath, "default", namespace, 1)).names())
	}
	if widgetsOf("default") != 20 {
		t.Errorf("%d widgets", widgetsOf("default"))
	}
}

func TestAdmitCreateWith_constructorFails(t *testing.T) {
	t.Parallel()
	for want, construct := range map[string]func(*annex.Env) (annex.AdmitCreateFunc[v1.Widget], error){
		"no luck":          func(*annex.Env) (annex.AdmitCreateFunc[v1.Widget], error) { return nil, errors.New("no luck") },
		"returned no hook": func(*annex.Env) (annex.AdmitCreateFunc[v1.Widget], error) { return nil, nil },
	} {
		server := annex.Server{
			Name:   "shop",
			Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{widgets().AdmitCreateWith(construct)}}},
		}
		_, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestHooks_hangOrPanic(t *testing.T) {
	t.Parallel()
	c := startKind(t, widgets().Admit(func(ctx context.Context, r annex.Request[v1.Widget]) error {
		switch r.Name {
		case "hangs":
			<-ctx.Done()
			return ctx.Err()
		case "panics":
			panic("a mistake in a hook")
		}
		return nil
	}))
	c.post(widgetsPath+"?timeout=50ms", widget("hangs")).
		refused(504, metav1.StatusReasonTimeout, "request did not complete within requested timeout")
	c.post(widgetsPath, widget("panics")).refused(500, metav1.StatusReasonInternalError)
	c.create("works")
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[works]" {
		t.Errorf("left behind: %v", got)
	}
}

func TestAdmitWith_constructorFails(t *testing.T) {
	t.Parallel()
	cannot := func(*annex.Env) (annex.AdmitFunc[v1.Widget], error) { return nil, errors.New("no luck") }
	_, err := annex.New(t.Context(), annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().AdmitWith(cannot).MutateWith(cannot),
	}}}}, annex.Options{Storage: memory.Storage()})
	if err == nil || !strings.Contains(err.Error(), "admission hook 1 of kind Widget.shop.example.com: no luck") ||
		!strings.Contains(err.Error(), "hook 2") {
		t.Errorf("got %v", err)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	notOn(t, againOnEtcd, etcd.Name)
	c := start(t, shop())
	const large = "spec.size: large widgets are hard to carry"
	const bare = `metadata.finalizers: "bare": prefer a domain-qualified finalizer name including a path (/) to avoid accidental ` +
		`conflicts with other finalizer writers`
	for _, step := range []struct {
		name string
		a    *answer
		want []string
	}{
		{"create", c.post(widgetsPath, widget("w", spec(fields{"size": "large"}))), []string{large}},
		{"read", c.get(widgetsPath + "/w"), nil},
		{"patch", c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"replicas":1}}`), []string{large}},
		{"finalizer", c.patch(mergePatch, widgetsPath+"/w",
			`{"metadata":{"finalizers":["bare","foregroundDeletion"]},"spec":{"size":"small"}}`), []string{bare}},
		{"the same finalizer", c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"replicas":2}}`), nil},
		{"status", c.patch(mergePatch, widgetsPath+"/w/status", `{"status":{"phase":"Ready"}}`), nil},
		{"refused", c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"large","replicas":101}}`), nil},
		{"dry run", c.patch(mergePatch, widgetsPath+"/w?dryRun=All", `{"spec":{"size":"large"}}`), []string{large}},
		{"apply", c.apply(widgetsPath+"/w", "m", widget("w", spec(fields{"size": "large"})), "force=true"), []string{large}},
	} {
		if got := step.a.warnings(); !slices.Equal(got, step.want) {
			t.Errorf("%s: warnings %q, want %q", step.name, got, step.want)
		}
	}
}
