package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// atMost admits a widget if there are fewer than n others.
func atMost(n int) func(context.Context, annex.Request[v1.Widget], []*v1.Widget) error {
	return func(_ context.Context, _ annex.Request[v1.Widget], existing []*v1.Widget) error {
		if len(existing) >= n {
			return fmt.Errorf("there are %d widgets, and no more than %d may be", len(existing), n)
		}
		return nil
	}
}

func TestAdmitCreateIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	c := startKind(t, widgets().AdmitCreate(atMost(10)))
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			var a *answer
			if name := fmt.Sprint("w", i); i%2 == 0 {
				a = c.post(widgetsPath, widget(name))
			} else {
				a = c.apply(widgetsPath+"/"+name, "m", widget(name))
			}
			if a.code == http.StatusCreated {
				made.Add(1)
			} else if a.code != http.StatusForbidden || !strings.Contains(string(a.raw), "there are 10 widgets, and no more than 10 may be") {
				t.Errorf("%s: %d: %s", a.asked, a.code, a.raw)
			}
		})
	}
	all.Wait()
	if n := len(c.get(widgetsPath).want(200).names()); n != 10 || made.Load() != 10 {
		t.Errorf("%d widgets, %d creates acknowledged; want 10 each", n, made.Load())
	}
}

// Places are released and taken all the time. No writer is rejected for long while a place is free, and at no
// revision are more places taken.
func TestAdmitCreateWithDeletesRacing(t *testing.T) {
	t.Parallel()
	const places, writers, rounds = 3, 8, 12
	c := startKind(t, widgets().AdmitCreate(atMost(places)))
	watch := c.watch(widgetsPath + "?watch=1")
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			path := fmt.Sprintf("%s/w%d", widgetsPath, i)
			for range rounds {
				for {
					a := c.post(widgetsPath, widget(fmt.Sprint("w", i)))
					if a.code == http.StatusCreated {
						break
					}
					if a.code != http.StatusForbidden {
						t.Errorf("%s: %d: %s", a.asked, a.code, a.raw)
						return
					}
				}
				c.delete(path, nil).want(200)
			}
		})
	}
	all.Wait()
	live, created := 0, 0
	for created < writers*rounds || live > 0 {
		switch e := watch.next(); e.Type {
		case "ADDED":
			live++
			created++
		case "DELETED":
			live--
		default:
			t.Fatalf("%v", e)
		}
		if live > places {
			t.Fatalf("%d widgets at a time", live)
		}
	}
}

func TestAdmitCreateSeesAllOthersAndNothingElse(t *testing.T) {
	t.Parallel()
	var asked questions
	c := startKind(t, widgets().AdmitCreate(func(_ context.Context, r annex.Request[v1.Widget], existing []*v1.Widget) error {
		asked.add(
			r,
			fmt.Sprintf("%s %s %s/%s %s by %s", r.Operation, r.Resource.Version, r.Namespace, r.Object.Name, r.Object.Spec.Size, r.User.GetName()),
			existing,
		)
		if len(existing) == 3 {
			return errors.New("three are enough")
		}
		return nil
	}))
	c.namespace("other")
	c.create("a")
	asked.want(t, "CREATE v1 default/a medium by annex-admin beside []")
	c.apply(strings.Replace(widgetsBetaPath, "default", "other", 1)+"/b", "m", widgetBeta("b")).want(201)
	asked.want(t, "CREATE v1beta1 other/b small by annex-admin beside [default/a]")
	c.create("b")
	asked.want(t, "CREATE v1 default/b medium by annex-admin beside [default/a other/b]")

	// A write that creates nothing calls no hook.
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"large"}}`).want(200)
	c.apply(widgetsPath+"/b", "m", widget("b")).want(200)
	c.apply(widgetsPath+"/b", "m", widget("b", spec(fields{"size": "small"})), "force=true").want(200)
	c.patch(mergePatch, widgetsPath+"/a/status", `{"status":{"phase":"Ready"}}`).want(200)
	c.post(widgetsPath, widget("a")).refused(409, metav1.StatusReasonAlreadyExists)
	c.post(widgetsPath+"?dryRun=All", widget("a")).refused(409, metav1.StatusReasonAlreadyExists)
	c.post(widgetsPath, widget("bad", spec(fields{"size": "huge"}))).want(422)
	c.post(strings.Replace(widgetsPath, "default", "missing", 1), widget("x")).want(404)
	asked.want(t)

	const refusal = `widgets.shop.example.com "c" is forbidden: three are enough`
	s := c.post(widgetsPath, widget("c")).refused(403, metav1.StatusReasonForbidden, refusal)
	if s.Details == nil || s.Details.Name != "c" || s.Details.Group != "shop.example.com" || s.Details.Kind != "widgets" {
		t.Errorf("details: %+v", s.Details)
	}
	c.apply(widgetsPath+"/c", "m", widget("c")).refused(403, metav1.StatusReasonForbidden, refusal)
	c.post(widgetsPath, widget("", metadata(fields{"generateName": "g-"}))).refused(403, metav1.StatusReasonForbidden, "three are enough")
	asked.take()
	c.post(widgetsPath+"?dryRun=All", widget("c")).refused(403, metav1.StatusReasonForbidden, refusal)
	c.apply(widgetsPath+"/c", "m", widget("c"), "dryRun=All").refused(403, metav1.StatusReasonForbidden, refusal)
	const dry = "CREATE v1 default/c medium by annex-admin dry beside [default/a default/b other/b]"
	asked.want(t, dry, dry)
	c.delete(widgetsPath+"/b", nil).want(200)
	c.post(widgetsPath+"?dryRun=All", widget("c")).want(201)
	c.create("c")
}

func TestAdmitCreate_files(t *testing.T) {
	t.Parallel()
	f := newTree(t)
	for _, name := range []string{"a", "b", "c"} {
		f.write(f.widget(name), handWidget(name, "small"))
	}
	c := startWith(t, only(widgets().AdmitCreate(atMost(1))), f.options())
	if got := c.get(widgetsPath).want(200).names(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("served: %v", got)
	}
	c.post(widgetsPath, widget("d")).refused(403, metav1.StatusReasonForbidden, "there are 3 widgets, and no more than 1 may be")
}
