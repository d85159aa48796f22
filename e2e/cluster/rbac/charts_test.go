package rbac

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/e2e/cluster/gomod"
)

// projects are the projects whose manifests of roles and bindings are applied, as Go modules.
var projects = []struct {
	module    string
	chart     string   // or
	manifests []string // patterns of files
	values    map[string]any
}{
	{module: "k8s.io/sample-apiserver@v0.37.2", manifests: []string{"artifacts/example/*.yaml"}},
	{module: "github.com/prometheus-operator/prometheus-operator@v0.85.0", manifests: []string{"example/rbac/*/*.yaml"}},
	{module: "sigs.k8s.io/metrics-server@v0.9.0", chart: "charts/metrics-server", values: map[string]any{
		"addonResizer": map[string]any{"enabled": true}, "rbac": map[string]any{"create": true},
	}},
	{module: "sigs.k8s.io/external-dns@v0.19.0", chart: "charts/external-dns", values: map[string]any{
		"sources": []any{"service", "ingress", "gateway-httproute", "crd"},
	}},
	{module: "sigs.k8s.io/descheduler@v0.36.0", chart: "charts/descheduler", values: map[string]any{
		"leaderElection": map[string]any{"enabled": true},
	}},
}

// The manifests of other projects grant the same rights on both servers: kubectl applies them unchanged, and the
// service accounts get the same rules about themselves.
func TestForeignManifests_rights(t *testing.T) {
	settled(t)
	config := alone.Serve(t)
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// Service accounts have rights of kube-apiserver's own objects as well.
	complete(t, own)
	for _, project := range projects {
		t.Run(project.module, func(t *testing.T) {
			dir := gomod.Dir(t, project.module)
			var texts []string
			if project.chart != "" {
				texts = render(t, filepath.Join(dir, project.chart), project.values)
			}
			for _, pattern := range project.manifests {
				files, err := filepath.Glob(filepath.Join(dir, pattern))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					texts = append(texts, string(text))
				}
			}
			objects, accounts, spaces := rightsIn(t, texts)
			for _, to := range []*rest.Config{host.Admin(), config} {
				for _, space := range spaces {
					_, _ = kubectl(t, to, "", "create", "namespace", space) // it may exist
				}
				out, err := kubectl(t, to, strings.Join(objects, "\n---\n"), "apply", "--validate=strict", "-f", "-")
				if made := strings.Count(
					out,
					" created",
				) + strings.Count(
					out,
					" unchanged",
				) + strings.Count(
					out,
					" configured",
				); err != nil ||
					made != len(objects) {
					t.Fatalf("%d of %d objects: %v\n%s", made, len(objects), err, out)
				}
			}
			t.Logf("%d objects, %d service accounts", len(objects), len(accounts))
			if len(objects) < 3 || len(accounts) == 0 {
				t.Error("too few to prove something")
			}
			sameRules(t, config, accounts)
		})
	}
}

func render(t *testing.T, dir string, values map[string]any) []string {
	t.Helper()
	chart, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "chart", Namespace: "default", IsInstall: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := engine.Engine{}.Render(chart, all)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Values(rendered))
}

// rightsIn returns the roles, bindings and service accounts of manifests, the service accounts as callers, and the
// namespaces of the objects.
func rightsIn(t *testing.T, texts []string) (objects []string, accounts []*user.DefaultInfo, spaces []string) {
	t.Helper()
	var rest []string
	for _, text := range texts {
		for document := range strings.SplitSeq("\n"+text, "\n---") {
			var object struct {
				Kind, APIVersion string
				Metadata         struct{ Name, Namespace string }
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				continue // it is not an object
			}
			isAccount := object.Kind == "ServiceAccount" && object.APIVersion == "v1"
			if !isAccount && !strings.HasPrefix(object.APIVersion, rbacv1.GroupName+"/") {
				continue
			}
			if object.Metadata.Namespace != "" {
				spaces = append(spaces, object.Metadata.Namespace)
			}
			if !isAccount {
				rest = append(rest, document)
				continue
			}
			objects = append(objects, document)
			namespace := object.Metadata.Namespace
			if namespace == "" {
				namespace = "default"
			}
			accounts = append(accounts, &user.DefaultInfo{
				Name: serviceaccount.MakeUsername(namespace, object.Metadata.Name), Groups: serviceaccount.MakeGroupNames(namespace),
			})
		}
	}
	return append(objects, rest...), accounts, spaces
}

// kubectl runs kubectl as the administrator of a configuration, and returns all output.
func kubectl(t *testing.T, to *rest.Config, stdin string, args ...string) (string, error) {
	t.Helper()
	program, err := filepath.Abs("../../../bin/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	flags := []string{"--server", to.Host, "--certificate-authority", write("ca", to.CAData), "--kubeconfig", os.DevNull}
	if to.BearerToken != "" {
		flags = append(flags, "--token", to.BearerToken)
	} else {
		flags = append(flags, "--client-certificate", write("cert", to.CertData), "--client-key", write("key", to.KeyData))
	}
	cmd := exec.CommandContext(t.Context(), program, append(flags, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return string(out), err
}
