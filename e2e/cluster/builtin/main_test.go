// Package builtin compares the kinds of a control plane with those of a real kube-apiserver: rejections and their
// messages, the stored form of accepted objects, and the tables that kubectl prints.
package builtin

import (
	"context"
	"os"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/controlplane/builtin"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/store/memory"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, kube.Options{Controllers: []string{}, APIServerArgs: []string{
		// They concern other objects than the compared ones, in the same namespace.
		"--disable-admission-plugins", "LimitRanger,ResourceQuota",
		// Every installed cluster has it, and so does a control plane.
		"--allow-privileged",
		"--runtime-config", "coordination.k8s.io/v1beta1=true",
	}}, func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}

// start serves the built-in kinds until the test is done, and returns the administrator's configuration.
func start(t *testing.T) *rest.Config {
	t.Helper()
	server, err := (&define.Server{Name: "builtin"}).With(builtin.Groups()...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Resolve(&definition.Definition{Server: server}, config.Options{Storage: memory.Storage(), Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := serve.New(ctx, p, func(*define.Server, *rest.Config, *informer.Set, func() []byte) any { return nil })
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	own, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	return own
}
