// Package controllers compares the controllers and the admission of a control plane with those of
// kube-controller-manager and kube-apiserver.
package controllers

import (
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/e2e/cluster/kube"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{
		"garbage-collector-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller",
		"storage-version-migrator-controller",
	}}, func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}

// both returns clients of the real server and of a server with a control plane, by name.
func both(t *testing.T) map[string]kubernetes.Interface {
	t.Helper()
	own := annextest.Start(t, annex.Server{Name: "plane", ControlPlane: controlplane.New(controlplane.Options{})})
	return map[string]kubernetes.Interface{"kube": kubernetes.NewForConfigOrDie(host.Admin()), "annex": kubernetes.NewForConfigOrDie(own)}
}
