package etcdtest_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// TestLoad_detectsViolations passes the results of a broken server to the checks of the load.
func TestLoad_detectsViolations(t *testing.T) {
	widget := func(name string, version int) *unstructured.Unstructured {
		w := newWidget(name)
		w.SetResourceVersion(fmt.Sprint(version))
		return w
	}
	stored := func(l *load) {
		l.store(widget("a", 5))
		l.store(widget("b", 6))
		l.store(widget("a", 7))
	}
	list := func(l *load, items ...*unstructured.Unstructured) {
		var all []unstructured.Unstructured
		for _, item := range items {
			all = append(all, *item)
		}
		l.compare(l.known(), all, "a list")
	}
	watched := func(l *load, events ...watch.Event) {
		w := &watcher{load: l, last: 4}
		for _, event := range events {
			w.see(event)
		}
		w.check(l.versions)
	}
	added, modified := watch.Added, watch.Modified
	for name, test := range map[string]struct {
		do   func(l *load)
		want string // "" if there is no violation
	}{
		"all is there":      {func(l *load) { list(l, widget("a", 7), widget("b", 8)) }, ""},
		"an object is lost": {func(l *load) { list(l, widget("b", 6)) }, "a was acknowledged at version 7"},
		"a write is lost":   {func(l *load) { list(l, widget("a", 5), widget("b", 6)) }, "a was acknowledged at version 7"},
		"a deleted object":  {func(l *load) { l.remove("b"); list(l, widget("a", 7), widget("b", 6)) }, "b was deleted"},
		"a revision falls":  {func(l *load) { l.store(widget("a", 6)) }, "version 6 after 7"},
		"all events": {func(l *load) {
			watched(l, watch.Event{Type: added, Object: widget("a", 5)}, watch.Event{Type: added, Object: widget("b", 6)},
				watch.Event{Type: modified, Object: widget("a", 7)})
		}, ""},
		"an event is missed": {func(l *load) {
			watched(l, watch.Event{Type: added, Object: widget("a", 5)}, watch.Event{Type: modified, Object: widget("a", 7)})
		}, "not got version 6 of b"},
		"an event comes twice": {func(l *load) {
			watched(l, watch.Event{Type: added, Object: widget("a", 5)}, watch.Event{Type: added, Object: widget("a", 5)})
		}, "got version 5 of a after 5"},
		"an event of the wrong type": {func(l *load) { watched(l, watch.Event{Type: modified, Object: widget("a", 5)}) }, "got MODIFIED a, " +
			"which did exist: false"},
		"an error to try again after": {func(l *load) { l.retryable("get", apierrors.NewConflict(widgets.GroupResource(), "a", nil)) }, ""},
		"an object not found":         {func(l *load) { l.retryable("get", apierrors.NewNotFound(widgets.GroupResource(), "a")) }, "not found"},
		"no right to": {func(l *load) { l.retryable("get", apierrors.NewForbidden(widgets.GroupResource(), "a", nil)) },
			"forbidden"},
		"an error of no kind": {func(l *load) { l.retryable("get", fmt.Errorf("no idea")) }, "no idea"},
		"a history that is old": {func(l *load) {
			l.retryable("list", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Message: "gone"}})
		}, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLoad(t, nil)
			stored(l)
			test.do(l)
			found := slices.ContainsFunc(l.wrong, func(wrong string) bool { return strings.Contains(wrong, test.want) })
			if test.want == "" && len(l.wrong) > 0 || test.want != "" && !found {
				t.Errorf("got %q, want %q", l.wrong, test.want)
			}
		})
	}
}
