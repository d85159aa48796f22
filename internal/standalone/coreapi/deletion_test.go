package coreapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (s *server) countWidgets(t testing.TB) (count int) {
	t.Helper()
	list, err := s.widgets.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// release removes all finalizers from a widget.
func (s *server) release(t testing.TB, namespace, name string) {
	t.Helper()
	_, err := s.widgets.Namespace(namespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// conditions returns the status, reason and message of the namespace's conditions, by type.
func conditions(ns *corev1.Namespace) map[string]string {
	all := map[string]string{}
	for _, c := range ns.Status.Conditions {
		all[string(c.Type)] = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	return all
}

func TestDeletion_removesContent(t *testing.T) {
	s := start(t)
	s.runDeletion(t)
	s.create(t, namespace("lab"))
	s.create(t, namespace("other"))
	s.create(t, namespace("empty"))
	for i := range 10 {
		s.createWidget(t, "lab", widget(fmt.Sprint("w", i)))
	}
	s.createWidget(t, "other", widget("w"))

	s.delete(t, "empty")
	s.await(t, "empty", gone)
	s.delete(t, "lab")
	s.await(t, "lab", gone)
	if n := s.countWidgets(t); n != 1 {
		t.Errorf("%d widgets left, want the one of the other namespace", n)
	}
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("w0"))
}

func TestDeletion_finalizers_areReported(t *testing.T) {
	s := start(t)
	stop := s.runDeletion(t)
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("free"))
	s.createWidget(t, "lab", widget("one", "example.com/a"))
	s.createWidget(t, "lab", widget("two", "example.com/a", "example.com/b"))
	s.delete(t, "lab")
	want := map[string]string{
		"NamespaceDeletionDiscoveryFailure":           "False ResourcesDiscovered: All resources successfully discovered",
		"NamespaceDeletionGroupVersionParsingFailure": "False ParsedGroupVersions: All legacy kube types successfully parsed",
		"NamespaceDeletionContentFailure":             "False ContentDeleted: All content successfully deleted, may be waiting on finalization",
		"NamespaceContentRemaining": "True SomeResourcesRemain: Some resources are remaining: widgets.shop.example.com has " +
			"2 resource instances",
		"NamespaceFinalizersRemaining": "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: " +
			"example.com/a in 2 resource instances, example.com/b in 1 resource instances",
	}
	s.await(t, "lab", func(ns *corev1.Namespace) bool {
		got := conditions(ns)
		for kind, text := range want {
			if got[kind] != text {
				return false
			}
		}
		return true
	})

	// A restarted controller continues.
	stop()
	s.release(t, "lab", "one")
	s.runDeletion(t)
	s.await(t, "lab", func(ns *corev1.Namespace) bool {
		return strings.Contains(conditions(ns)["NamespaceContentRemaining"], "has 1 resource instances")
	})
	s.release(t, "lab", "two")
	s.await(t, "lab", gone)
	if n := s.countWidgets(t); n != 0 {
		t.Errorf("%d widgets left", n)
	}
}

func TestDeletion_otherFinalizers_stay(t *testing.T) {
	s := start(t)
	s.runDeletion(t)
	ns := namespace("lab")
	ns.Spec.Finalizers = []corev1.FinalizerName{"example.com/hold"}
	s.create(t, ns)
	s.createWidget(t, "lab", widget("w"))
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool {
		return len(ns.Spec.Finalizers) == 1 && ns.Spec.Finalizers[0] == "example.com/hold"
	})
	if n := s.countWidgets(t); n != 0 {
		t.Errorf("%d widgets left", n)
	}
}

// The deletion must wait for a slow create that was admitted before the namespace became Terminating.
func TestDeletion_createInProgress_waits(t *testing.T) {
	for way, create := range ways {
		t.Run(way, func(t *testing.T) {
			atStorage, proceed := make(chan struct{}), make(chan struct{})
			var once sync.Once
			s := startOn(t, openBackend(t), hooks{beforeWrite: func() {
				once.Do(func() { close(atStorage); <-proceed })
			}})
			s.create(t, namespace("lab"))
			s.create(t, namespace("probe"))
			created := make(chan error, 1)
			go func() { created <- create(context.Background(), s, "lab", widget("late"), nil) }()
			<-atStorage

			s.delete(t, "lab")
			s.runDeletion(t)
			// When the controller has removed probe, it has also observed lab.
			s.delete(t, "probe")
			s.await(t, "probe", gone)
			s.get(t, "lab")

			close(proceed)
			if err := <-created; err != nil {
				t.Errorf("the create that was admitted: %v", err)
			}
			s.await(t, "lab", gone)
			if n := s.countWidgets(t); n != 0 {
				t.Errorf("%d widgets left in a namespace that is gone", n)
			}
		})
	}
}

// A create that began before the namespace became Terminating, and reaches the storage after the deletion has listed
// the content, must be rejected.
func TestGuard_lateCreate_isRefused(t *testing.T) {
	for way, create := range ways {
		for _, test := range []struct {
			name    string
			until   func(*corev1.Namespace) bool
			refused func(error) bool
		}{
			{"terminating", func(ns *corev1.Namespace) bool { return ns.DeletionTimestamp != nil }, func(err error) bool {
				return apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
			}},
			{"gone", gone, apierrors.IsNotFound},
		} {
			t.Run(way+" "+test.name, func(t *testing.T) {
				admitted, proceed := make(chan struct{}), make(chan struct{})
				s := startOn(t, openBackend(t), hooks{beforeGuard: func() { close(admitted); <-proceed }})
				s.create(t, namespace("lab"))
				created := make(chan error, 1)
				go func() { created <- create(context.Background(), s, "lab", widget("late"), nil) }()
				<-admitted
				s.delete(t, "lab")
				if test.name == "gone" {
					s.runDeletion(t)
				}
				s.await(t, "lab", test.until)
				close(proceed)
				if err := <-created; !test.refused(err) {
					t.Errorf("got %v", err)
				}
				if n := s.countWidgets(t); n != 0 {
					t.Errorf("%d widgets were created", n)
				}
			})
		}
	}
}

func TestDeletion_lastObject_wakes(t *testing.T) {
	s := start(t)
	s.runController(t, s.core.RunDeletionWithoutRetry, onlyWidgets)
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("one", "example.com/a"))
	s.createWidget(t, "lab", widget("two", "example.com/a"))
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool { return len(ns.Status.Conditions) > 0 })
	s.release(t, "lab", "one")
	s.release(t, "lab", "two")
	s.await(t, "lab", gone)
}

func TestDeletion_load_leavesNothing(t *testing.T) {
	s := start(t)
	s.runDeletion(t)
	const spaces, writers = 10, 6
	var wg sync.WaitGroup
	for i := range spaces {
		name := fmt.Sprint("lab", i)
		s.create(t, namespace(name))
		var accepted atomic.Int64
		for w := range writers {
			wg.Go(func() {
				for n := 0; ; n++ {
					way := ways["create"]
					if n%2 == 1 {
						way = ways["apply"]
					}
					err := way(t.Context(), s, name, widget(fmt.Sprintf("w-%d-%d", w, n)), nil)
					if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					accepted.Add(1)
				}
			})
		}
		wg.Go(func() {
			for accepted.Load() < writers {
				if t.Failed() {
					return
				}
			}
			if err := s.namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range spaces {
		s.await(t, fmt.Sprint("lab", i), gone)
	}
	if n := s.countWidgets(t); n != 0 {
		t.Errorf("%d widgets left in namespaces that are gone", n)
	}
}

// intercept answers requests of the client with the responses of answer. A nil response passes the request on to the
// server.
func (s *server) intercept(answer func(*http.Request) *http.Response) {
	s.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if response := answer(req); response != nil {
				return response, nil
			}
			return next.RoundTrip(req)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func status(req *http.Request, code int, reason metav1.StatusReason) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no luck","reason":%q,"code":%d}`, reason, code)
	return &http.Response{
		StatusCode: code, Request: req, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader(body)),
	}
}

func isDeleteCollection(req *http.Request) bool {
	return req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/widgets")
}

func TestDeletion_failures_areReportedAndRetried(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("w"))
	var healed atomic.Bool
	s.intercept(func(req *http.Request) *http.Response {
		if isDeleteCollection(req) && !healed.Load() {
			return status(req, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		}
		return nil
	})
	s.runDeletion(t)
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool {
		got := conditions(ns)
		return strings.HasPrefix(got["NamespaceDeletionContentFailure"], "True ContentDeletionFailed: Failed to delete all resource types, 1 "+
			"remaining: delete widgets.shop.example.com:") &&
			strings.HasPrefix(got["NamespaceContentRemaining"], "True SomeResourcesRemain")
	})
	healed.Store(true)
	s.await(t, "lab", gone)
}

func TestDeletion_withoutCollections(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	for i := range 3 {
		s.createWidget(t, "lab", widget(fmt.Sprint("w", i)))
	}
	s.intercept(func(req *http.Request) *http.Response {
		if isDeleteCollection(req) {
			return status(req, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		}
		return nil
	})
	s.runDeletion(t)
	s.delete(t, "lab")
	s.await(t, "lab", gone)
	if n := s.countWidgets(t); n != 0 {
		t.Errorf("%d widgets left", n)
	}
}

func BenchmarkNamespaceLife(b *testing.B) {
	s := start(b)
	s.runDeletion(b)
	for b.Loop() {
		s.create(b, namespace("lab"))
		s.createWidget(b, "lab", widget("w"))
		s.delete(b, "lab")
		s.await(b, "lab", gone)
	}
}
