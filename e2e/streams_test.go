package e2e

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex/internal/server/streams/streamtest"
)

var halls = schema.GroupVersionResource{Group: "theatre.example.com", Version: "v1", Resource: "halls"}

// Sessions are the same on every storage.
func TestStreams_everyStorage(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"embedded", "files", "memory"} {
		t.Run(storage, func(t *testing.T) {
			s := startServer(t, "theatre", "--storage", storage)
			client, err := dynamic.NewForConfig(s.config(t))
			if err != nil {
				t.Fatal(err)
			}
			for name, labels := range map[string]any{"open": nil, "shut": map[string]any{"closed": "yes"}} {
				hall := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "theatre.example.com/v1", "kind": "Hall", "metadata": map[string]any{"name": name}, "box": streamtest.Box(t),
				}}
				if labels != nil {
					_ = unstructured.SetNestedField(hall.Object, labels, "metadata", "labels") // a map of strings
				}
				if _, err := client.Resource(halls).Namespace("default").Create(t.Context(), hall, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			target := func(name string) streamtest.Target {
				return streamtest.Target{
					Config: s.config(t), Path: "/apis/theatre.example.com/v1/namespaces/default/halls/" + name,
					Container: "sound", Log: fmt.Sprintf("sound of %[1]s, line 8\nsound of %[1]s, line 9\n", name),
				}
			}
			target("open").Test(t, 8<<20)
			target("shut").Refused(t, func(err error) bool {
				return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "the hall is closed")
			})
		})
	}
}
