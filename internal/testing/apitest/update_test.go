package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

// total admits an update if all widgets together have no more than n replicas.
func total(n int32) func(context.Context, annex.Request[v1.Widget], []*v1.Widget) error {
	return func(_ context.Context, r annex.Request[v1.Widget], others []*v1.Widget) error {
		sum := replicas(r.Object)
		for _, other := range others {
			sum += replicas(other)
		}
		if sum > n {
			return fmt.Errorf("%d replicas are more than %d", sum, n)
		}
		return nil
	}
}

func replicas(w *v1.Widget) int32 {
	if w.Spec.Replicas == nil {
		return 0
	}
	return *w.Spec.Replicas
}

// Updates by all verbs, and creates, race for 20 replicas. Their guarantee is that of the hooks together.
func TestAdmitUpdateIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]annex.Options{
		memory.Name:   {Storage: memory.Storage()},
		embedded.Name: {Storage: embedded.Dir(t.TempDir())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most = 20
			c := startWith(t, only(widgets().AdmitCreate(total(most)).AdmitUpdate(total(most))), options)
			for i := range 50 {
				c.post(widgetsPath, widget(fmt.Sprint("w", i), spec(fields{"replicas": 0}))).want(201)
			}
			var granted atomic.Int32
			var all sync.WaitGroup
			for i := range 60 {
				all.Go(func() {
					path, more := fmt.Sprint(widgetsPath, "/w", i), spec(fields{"replicas": 1})
					var a *answer
					switch {
					case i >= 50:
						a = c.post(widgetsPath, widget(fmt.Sprint("w", i), more))
					case i%4 == 0:
						read := c.get(path).want(200).str("metadata", "resourceVersion")
						a = c.put(path, widget(fmt.Sprint("w", i), more, metadata(fields{"name": fmt.Sprint("w", i), "resourceVersion": read})))
					case i%4 == 1:
						a = c.apply(path, "m", widget(fmt.Sprint("w", i), more), "force=true")
					case i%4 == 2:
						a = c.patch(mergePatch, path+"/scale", `{"spec":{"replicas":1}}`)
					default:
						a = c.patch(mergePatch, path, `{"spec":{"replicas":1}}`)
					}
					switch {
					case a.code == http.StatusOK || a.code == http.StatusCreated:
						granted.Add(1)
					case a.code != http.StatusForbidden || !strings.Contains(string(a.raw), "21 replicas are more than 20"):
						t.Errorf("%s: %d: %s", a.asked, a.code, a.raw)
					}
				})
			}
			all.Wait()
			var list v1.WidgetList
			decode(t, c.get(widgetsPath).want(200).raw, &list)
			var sum int32
			for i := range list.Items {
				sum += replicas(&list.Items[i])
			}
			if sum != most || granted.Load() != most {
				t.Errorf("%d replicas, %d writes acknowledged; want %d each", sum, granted.Load(), most)
			}
		})
	}
}

func TestAdmitUpdateSeesAllOthersAndNothingElse(t *testing.T) {
	t.Parallel()
	var asked questions
	c := startKind(t, widgets().AdmitUpdate(func(_ context.Context, r annex.Request[v1.Widget], others []*v1.Widget) error {
		asked.add(
			r,
			fmt.Sprintf(
				"%s %s %q %s/%s from %s to %s",
				r.Operation,
				r.Resource.Version,
				r.Subresource,
				r.Namespace,
				r.Name,
				r.Old.Spec.Size,
				r.Object.Spec.Size,
			),
			others,
		)
		if r.Object.Spec.Size == "large" {
			return errors.New("too large")
		}
		return nil
	}))
	c.namespace("other")
	c.create("a")
	c.apply(widgetsPath+"/b", "m", widget("b")).want(201)
	c.post(strings.Replace(widgetsPath, "default", "other", 1), widget("b")).want(201)
	asked.want(t)

	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"small"}}`).want(200)
	asked.want(t, `UPDATE v1 "" default/a from medium to small beside [default/b other/b]`)
	c.apply(widgetsPath+"/b", "m", widget("b", spec(fields{"size": "small"})), "force=true").want(200)
	asked.want(t, `UPDATE v1 "" default/b from medium to small beside [default/a other/b]`)
	c.patch(mergePatch, widgetsPath+"/a/status", `{"status":{"phase":"Ready"}}`).want(200)
	c.patch(mergePatch, widgetsPath+"/a/scale", `{"spec":{"replicas":2}}`).want(200)
	asked.want(t, `UPDATE v1 "status" default/a from small to small beside [default/b other/b]`,
		`UPDATE v1 "scale" default/a from small to small beside [default/b other/b]`)

	const refusal = `widgets.shop.example.com "a" is forbidden: too large`
	const dry = `UPDATE v1 "" default/a from small to large dry beside [default/b other/b]`
	c.patch(mergePatch, widgetsPath+"/a?dryRun=All", `{"spec":{"size":"large"}}`).refused(403, metav1.StatusReasonForbidden, refusal)
	asked.want(t, dry)
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"large"}}`).refused(403, metav1.StatusReasonForbidden, refusal)
	if size := c.widget("a").Spec.Size; size != "small" {
		t.Errorf("what was refused is stored: %s", size)
	}
	asked.take()

	// Hooks are asked neither about requests that are rejected earlier, nor about deletions.
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"huge"}}`).want(422)
	c.patch(mergePatch, widgetsPath+"/missing", `{"spec":{"size":"large"}}`).want(404)
	c.patch(mergePatch, widgetsPath+"/a", `{"metadata":{"resourceVersion":"1"},"spec":{"size":"large"}}`).want(409)
	asked.want(t)
	c.patch(mergePatch, widgetsPath+"/a", `{"metadata":{"finalizers":["example.com/held"]}}`).want(200)
	asked.take()
	c.delete(widgetsPath+"/a", nil).want(200)
	asked.want(t)
	if c.get(widgetsPath+"/a").want(200).str("metadata", "deletionTimestamp") == "" {
		t.Error("it is not being deleted")
	}
}
