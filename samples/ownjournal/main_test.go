package main

import (
	"testing"

	"github.com/annexapi/annex/annextest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

func TestServer_restart_keepsNotes(t *testing.T) {
	dir := t.TempDir()
	notes := schema.GroupVersionResource{Group: "notes.example.com", Version: "v1", Resource: "notes"}
	var made *unstructured.Unstructured
	t.Run("write", func(t *testing.T) {
		note := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "notes.example.com/v1", "kind": "Note",
			"metadata": map[string]any{"name": "milk"}, "spec": map[string]any{"text": "buy some"},
		}}
		var err error
		made, err = client(t, dir).Resource(notes).Namespace("default").Create(t.Context(), note, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("read after a restart", func(t *testing.T) {
		note, err := client(t, dir).Resource(notes).Namespace("default").Get(t.Context(), "milk", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if text, _, _ := unstructured.NestedString(
			note.Object,
			"spec",
			"text",
		); text != "buy some" ||
			note.GetResourceVersion() != made.GetResourceVersion() {
			t.Errorf("the note says %q at %s, want %q at %s", text, note.GetResourceVersion(), "buy some", made.GetResourceVersion())
		}
	})
}

// client returns a client of a server that stops with the test.
func client(t *testing.T, dataDir string) dynamic.Interface {
	t.Helper()
	o := options(dataDir)
	o.Listen = ""
	return dynamic.NewForConfigOrDie(annextest.StartWith(t, server(), o))
}
