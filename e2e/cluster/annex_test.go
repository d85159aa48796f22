package cluster

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestAnnex_onEtcd(t *testing.T) { behave(t, startAnnex, "annex-etcd", startEtcd(t)) }

func TestAnnex_embedded(t *testing.T) { behave(t, startAnnex, "annex-embedded", nil) }

// startAnnex starts the wardle sample of this repository, with the same keys and values in etcd as upstream's.
func startAnnex(t *testing.T, name string, etcd *kube.Etcd) *wardle {
	t.Helper()
	data := filepath.Join(run, name)
	return newWardle(t, name, "wardle", etcd, func(common []string) []string {
		args := append([]string{"serve", "--aggregated", "--data-dir", data}, common...)
		if etcd == nil {
			return args
		}
		return append(args, "--storage", "etcd", "--etcd-servers", etcd.Endpoint(), "--etcd-prefix", "/registry/"+group)
	})
}

// A server that is started without its cluster stays alive, reports that it waits for the cluster, and continues by
// itself.
func TestAnnex_waitsForHost(t *testing.T) {
	kubeconfig := filepath.Join(run, "hostless.kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, identity(t)); err != nil {
		t.Fatal(err)
	}
	host.APIServer.Kill()
	t.Cleanup(func() {
		if !host.APIServer.Running() {
			if err := host.APIServer.Start(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	url := func(port int, path string) string { return fmt.Sprintf("https://127.0.0.1:%d%s", port, path) }
	p, err := kube.Run(ending(t), run, kube.Program{
		Name: "hostless", Path: filepath.Join(bin, "wardle"), Ports: 1,
		Args: func(ports []int) []string {
			return []string{
				"serve",
				"--aggregated",
				"--data-dir",
				filepath.Join(run, "hostless"),
				"--secure-port",
				fmt.Sprint(ports[0]),
				"--kubeconfig",
				kubeconfig,
			}
		},
		Ready: func(ctx context.Context, ports []int) error {
			if code, body := ask(ctx, http.MethodGet, url(ports[0], "/livez"), "", ""); code != http.StatusOK {
				return fmt.Errorf("/livez: %d %s", code, body)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	says := func(code int, text string) {
		t.Helper()
		testwait.NoError(t, "/readyz says "+text, func(ctx context.Context) error {
			if !p.Running() {
				t.Fatalf("the server has ended:\n%s", p.Tail())
			}
			if got, body := ask(ctx, http.MethodGet, url(p.Port(0), "/readyz"), "", ""); got != code || !strings.Contains(body, text) {
				return fmt.Errorf("%d %s", got, body)
			}
			return nil
		})
	}
	says(http.StatusInternalServerError, host.Admin().Host+" cannot be reached")
	if err := host.APIServer.Start(ending(t)); err != nil {
		t.Fatal(err)
	}
	says(http.StatusOK, "ok")
}
