package apitest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

// questions records the calls of an AdmitCreate or AdmitUpdate hook.
type questions struct {
	mu    sync.Mutex
	asked []string
}

// add records a call: the object of the request, and the other objects.
func (q *questions) add(r annex.Request[v1.Widget], about string, others []*v1.Widget) {
	if r.DryRun {
		about += " dry"
	}
	var names []string
	for _, w := range others {
		names = append(names, w.Namespace+"/"+w.Name)
	}
	slices.Sort(names)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, fmt.Sprint(about, " beside ", names))
}

// want compares the calls since the last time with the expected ones.
func (q *questions) want(t *testing.T, expected ...string) {
	t.Helper()
	if asked := q.take(); !slices.Equal(asked, expected) {
		t.Errorf("the hook was asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(expected, "\n"))
	}
}

// take returns and removes the recorded calls.
func (q *questions) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	asked := q.asked
	q.asked = nil
	return asked
}

func TestNew_unusableAdmitHooks(t *testing.T) {
	t.Parallel()
	admit := func(context.Context, annex.Request[v1.Widget], []*v1.Widget) error { return nil }
	virtual := func() *annex.KindBuilder[v1.Widget] {
		return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)
	}
	for name, test := range map[string]struct {
		kind annex.Kind
		want string
	}{
		"admit: nil":      {widgets().Admit(nil), "Admit or Mutate: the function is nil"},
		"admit: nil With": {widgets().AdmitWith(nil), "Admit or Mutate: the function is nil"},
		"admit: made none": {widgets().AdmitWith(func(*annex.Env) (annex.AdmitFunc[v1.Widget], error) { return nil, nil }),
			"AdmitWith returned no hook"},
		"admit: on what is none": {widgets().Admit(func(context.Context, annex.Request[v1.Widget]) error { return nil }, annex.Create, "READ"),
			`unknown operation "READ"; operations are CREATE, UPDATE and DELETE`},
		"mutate: nil":      {widgets().Mutate(nil), "Admit or Mutate: the function is nil"},
		"mutate: nil With": {widgets().MutateWith(nil), "Admit or Mutate: the function is nil"},
		"mutate: made none": {widgets().MutateWith(func(*annex.Env) (annex.AdmitFunc[v1.Widget], error) { return nil, nil }),
			"MutateWith returned no hook"},
		"create: nil": {widgets().AdmitCreate(nil), "AdmitCreate: the function is nil"},
		"create: virtual": {virtual().AdmitCreate(admit).Virtual(annex.Source[v1.Widget]{}), "AdmitCreate: the server does not store the " +
			"objects, so other writers may create objects"},
		"update: nil":      {widgets().AdmitUpdate(nil), "AdmitUpdate: the function is nil"},
		"update: nil With": {widgets().AdmitUpdateWith(nil), "AdmitUpdate: the function is nil"},
		"update: made none": {widgets().AdmitUpdateWith(func(*annex.Env) (annex.AdmitUpdateFunc[v1.Widget], error) { return nil, nil }),
			"AdmitUpdateWith returned no hook"},
		"update: virtual": {virtual().AdmitUpdate(admit).Virtual(annex.Source[v1.Widget]{}),
			"AdmitUpdate: the server does not store the objects, so other writers may"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := annex.New(t.Context(), only(test.kind), annex.Options{Storage: memory.Storage()})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
