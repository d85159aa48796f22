package coreapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// A group whose server does not respond may have content, so the namespace is kept.
func TestDeletion_incompleteDiscovery_waits(t *testing.T) {
	missing := schema.GroupVersion{Group: "metrics.example.com", Version: "v1"}
	some := &discovery.ErrGroupDiscoveryFailed{
		Groups: map[schema.GroupVersion]error{missing: errors.New("stale GroupVersion discovery: metrics.example.com/v1")},
	}
	for name, test := range map[string]struct {
		known []schema.GroupVersionResource
		err   error
		want  string
		left  int
	}{
		"a group is missing": {
			[]schema.GroupVersionResource{widgets}, some,
			"True DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: " +
				"metrics.example.com/v1: stale GroupVersion discovery: metrics.example.com/v1", 0,
		},
		"nothing is known": {nil, errors.New("connection refused"), "True DiscoveryFailed: connection refused", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			var healed atomic.Bool
			s.runController(t, s.core.RunDeletion, func(context.Context) ([]schema.GroupVersionResource, error) {
				if healed.Load() {
					return []schema.GroupVersionResource{widgets}, nil
				}
				return test.known, test.err
			})
			s.create(t, namespace("lab"))
			s.createWidget(t, "lab", widget("w"))
			s.delete(t, "lab")
			s.await(t, "lab", func(ns *corev1.Namespace) bool {
				return conditions(ns)["NamespaceDeletionDiscoveryFailure"] == test.want
			})
			if n := s.countWidgets(t); n != test.left {
				t.Errorf("%d widgets are left, want %d", n, test.left)
			}
			healed.Store(true)
			s.await(t, "lab", gone)
		})
	}
}

// Resources that pods may use stay as long as there are pods.
func TestDeletion_podsFirst(t *testing.T) {
	s := start(t)
	var stopped atomic.Bool
	s.intercept(func(req *http.Request) *http.Response {
		switch {
		case !strings.HasSuffix(req.URL.Path, "/namespaces/lab/pods"):
			return nil
		case req.Method == http.MethodDelete:
			return answer(req, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		case req.URL.Query().Has("watch"):
			return status(req, http.StatusInternalServerError, "InternalError")
		case stopped.Load():
			return answer(req, podsList())
		}
		return answer(req, podsList(`{"metadata":{"name":"p","namespace":"lab","finalizers":["example.com/stop"]}}`))
	})
	s.runController(t, s.core.RunDeletion, func(context.Context) ([]schema.GroupVersionResource, error) {
		return []schema.GroupVersionResource{widgets, corev1.SchemeGroupVersion.WithResource("pods")}, nil
	})
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("w"))
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool {
		got := conditions(ns)
		return got["NamespaceContentRemaining"] == "True SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances" &&
			got["NamespaceFinalizersRemaining"] == "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: "+
				"example.com/stop in 1 resource instances"
	})
	if n := s.countWidgets(t); n != 1 {
		t.Errorf("%d widgets, want the one that the pod may use", n)
	}
	stopped.Store(true)
	s.await(t, "lab", gone)
	if n := s.countWidgets(t); n != 0 {
		t.Errorf("%d widgets left", n)
	}
}

func podsList(items ...string) string {
	return fmt.Sprintf(
		`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[%s]}`,
		strings.Join(items, ","),
	)
}

func answer(req *http.Request, body string) *http.Response {
	response := status(req, http.StatusOK, "")
	response.Body = io.NopCloser(strings.NewReader(body))
	return response
}
