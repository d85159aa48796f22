package cluster

import (
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

// Upgrades pass the aggregator, and the server authorizes the caller by the cluster's roles.
func TestStreams_throughCluster(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	admin.given(permissions(t, "theatre"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "theatre", "theatre")
	if err != nil {
		t.Fatal(err)
	}
	startJoined(
		t,
		"theatre",
		"theatre",
		account,
		"--storage",
		"etcd",
		"--etcd-servers",
		startEtcd(t).Endpoint(),
	).register(t, halls.GroupVersion())
	ns := namespace(t)
	client, err := dynamic.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	hall := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "theatre.example.com/v1", "kind": "Hall", "metadata": map[string]any{"name": "h"}, "box": streamtest.Box(t),
	}}
	if _, err := client.Resource(halls).Namespace(ns).Create(t.Context(), hall, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	target := streamtest.Target{
		Config: host.Admin(), Path: "/apis/theatre.example.com/v1/namespaces/" + ns + "/halls/h",
		Container: "sound", Log: "sound of h, line 8\nsound of h, line 9\n",
	}
	target.Test(t, 8<<20)

	// A caller with the verb get alone is rejected over every protocol: a POST by the cluster, and the GET of a
	// WebSocket, which the cluster permits, by the server.
	reader := user(t, "reader")
	admin.must("create", "clusterrole", "read-halls", "--verb=get", "--resource=halls.theatre.example.com,halls.theatre.example.com/exec")
	admin.must("create", "clusterrolebinding", "read-halls", "--clusterrole=read-halls", "--user=reader")
	target.Config = reader
	target.Refused(t, func(err error) bool {
		return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), `cannot create resource "halls/exec"`)
	})
}
