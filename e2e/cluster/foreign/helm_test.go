package foreign

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	helmkube "helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/e2e/cluster/kube"
)

// Helm installs, upgrades, rolls back and uninstalls a chart with a definition, roles, config maps and hooks, and
// afterwards each server has the objects that Helm's own records list.
func TestHelm(t *testing.T) {
	for name, config := range map[string]*rest.Config{"kube-apiserver": host.Admin(), "annex": alone.ServeControlPlane(t)} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, name, config)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			if err := kube.WriteKubeconfig(kubeconfig, config); err != nil {
				t.Fatal(err)
			}
			flags := genericclioptions.NewConfigFlags(false)
			flags.KubeConfig = &kubeconfig
			h := helm{&action.Configuration{KubeClient: helmkube.New(flags)}}
			if err := h.Init(flags, "default", "secrets", t.Logf); err != nil {
				t.Fatal(err)
			}
			gone := []string{
				"/api/v1/namespaces/default/configmaps/shop-settings",
				"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/shop-reader",
				"/apis/charts.example.com/v1/namespaces/default/stalls/shop-first",
			}
			const settings, before, after, stalls = "/api/v1/namespaces/default/configmaps/shop-settings",
				"/api/v1/namespaces/default/configmaps/shop-before", "/api/v1/namespaces/default/configmaps/shop-after",
				"/apis/charts.example.com/v1/namespaces/default/stalls/shop-first"

			h.install(t, chartOf(t), map[string]any{"colour": "red"})
			s.has(t, settings, "data", "colour", "red")
			s.has(t, stalls, "spec", "colour", "red")
			s.has(t, before, "data", "revision", "1")
			s.has(t, after, "data", "revision", "1")

			h.upgrade(t, chartOf(t), map[string]any{"colour": "blue", "reader": false})
			s.has(t, settings, "data", "colour", "blue")
			s.has(t, stalls, "spec", "colour", "blue")
			s.has(t, before, "data", "revision", "2")
			s.lacks(t, gone[1])

			upgrade := action.NewUpgrade(h.Configuration)
			upgrade.Namespace = "default"
			if _, err := upgrade.Run("shop", chartOf(t), map[string]any{"colour": "a colour that the definition refuses"}); err == nil {
				t.Error("an upgrade to what the definition refuses is accepted")
			}
			s.has(t, stalls, "spec", "colour", "blue")

			rollback := action.NewRollback(h.Configuration)
			rollback.Version = 1
			if err := rollback.Run("shop"); err != nil {
				t.Fatal(err)
			}
			s.has(t, settings, "data", "colour", "red")
			s.has(t, stalls, "spec", "colour", "red")
			s.has(t, gone[1], "metadata", "name", "shop-reader")

			history, err := action.NewHistory(h.Configuration).Run("shop")
			if err != nil {
				t.Fatal(err)
			}
			var states []release.Status
			for _, r := range history {
				states = append(states, r.Info.Status)
			}
			if want := []release.Status{
				release.StatusSuperseded,
				release.StatusSuperseded,
				release.StatusFailed,
				release.StatusDeployed,
			}; !slices.Equal(
				states,
				want,
			) {
				t.Errorf("the history is %v, not %v", states, want)
			}

			uninstall := action.NewUninstall(h.Configuration)
			uninstall.Wait, uninstall.Timeout = true, time.Minute
			if _, err := uninstall.Run("shop"); err != nil {
				t.Fatal(err)
			}
			for _, path := range gone {
				s.lacks(t, path)
			}
			s.has(t, definitions+"/stalls.charts.example.com", "metadata", "name", "stalls.charts.example.com") // Helm keeps definitions
		})
	}
}

type helm struct{ *action.Configuration }

func (h helm) install(t *testing.T, c *chart.Chart, values map[string]any) {
	t.Helper()
	install := action.NewInstall(h.Configuration)
	install.ReleaseName, install.Namespace, install.Wait, install.Timeout = "shop", "default", true, time.Minute
	if _, err := install.RunWithContext(t.Context(), c, values); err != nil {
		t.Fatal(err)
	}
}

func (h helm) upgrade(t *testing.T, c *chart.Chart, values map[string]any) {
	t.Helper()
	upgrade := action.NewUpgrade(h.Configuration)
	upgrade.Namespace, upgrade.Wait, upgrade.Timeout = "default", true, time.Minute
	if _, err := upgrade.RunWithContext(t.Context(), "shop", c, values); err != nil {
		t.Fatal(err)
	}
}

func chartOf(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(filepath.Join("testdata", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// has fails the test unless an object has a text in a field of one of its parts.
func (s *server) has(t *testing.T, path, part, name, want string) {
	t.Helper()
	code, answer, raw := s.ask(t, http.MethodGet, path, nil)
	if code != http.StatusOK {
		t.Errorf("%s: %d\n%s", path, code, answer)
		return
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	fields, _ := o[part].(object)
	if fields[name] != want {
		t.Errorf("%s: %s.%s is %v, not %s", path, part, name, fields[name], want)
	}
}

func (s *server) lacks(t *testing.T, path string) {
	t.Helper()
	if code, answer, _ := s.ask(t, http.MethodGet, path, nil); code != http.StatusNotFound {
		t.Errorf("%s: %d\n%s", path, code, answer)
	}
}
