// Package controllers compares what the controllers and the admission of a control plane do with what kube-controller-manager
// and kube-apiserver do.
package controllers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testwait"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "annex-controllers-")
	code := 1
	if err == nil {
		code, err = runTests(m, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		_ = os.RemoveAll(dir)
	} else {
		fmt.Fprintln(os.Stderr, "logs, data and keys are kept in", dir)
	}
	os.Exit(code)
}

func runTests(m *testing.M, dir string) (int, error) {
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testwait.Patience)
	defer cancel()
	host, err = kube.Start(ctx, kube.Options{Bin: bin, Dir: dir, Controllers: []string{
		"garbage-collector-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller",
		"storage-version-migrator-controller",
	}})
	if err != nil {
		return 0, err
	}
	code := m.Run()
	return code, host.Stop()
}

// both returns clients of the real server and of one with a control plane, by name.
func both(t *testing.T) map[string]kubernetes.Interface {
	t.Helper()
	own := annextest.Start(t, annex.Server{Name: "plane", ControlPlane: controlplane.New(controlplane.Options{})})
	return map[string]kubernetes.Interface{"kube": kubernetes.NewForConfigOrDie(host.Admin()), "annex": kubernetes.NewForConfigOrDie(own)}
}
