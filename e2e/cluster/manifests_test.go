package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// deployments are flags of the verb manifests that together cover all of its output.
var deployments = map[string][]string{
	"embedded": nil,
	"files":    {"--storage", "files", "--storage-class", "fast", "--user-roles"},
	"memory":   {"--storage", "memory"},
	"etcd":     {"--storage", "etcd", "--etcd-servers", "https://etcd.example.com:2379", "--etcd-secret", "client"},
	"own etcd": {"--storage", "etcd", "--with-etcd"},
	"lean": {"--certificates", "secret=tls", "--enable-priority-and-fairness=false", "--disable-admission-plugins",
		"NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook"},
}

func manifestsOf(t *testing.T, flags ...string) string {
	t.Helper()
	return runs(t, filepath.Join(bin, "wardle"), append([]string{"manifests", "--image", "registry.example.com/wardle:v1"}, flags...)...)
}

// A dry run creates no namespace for the next object, so the namespace is created before.
func TestManifests_acceptedByHost(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	for name, flags := range deployments {
		t.Run(name, func(t *testing.T) {
			namespace := "manifests-" + strings.ReplaceAll(name, " ", "-")
			text := manifestsOf(t, append(flags, "--namespace", namespace)...)
			admin.must("create", "namespace", namespace)
			defer admin.must("delete", "namespace", namespace, "--wait=false")
			out := admin.given(text, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
			if made, wanted := strings.Count(
				out,
				"serverside-applied",
			), strings.Count(
				text,
				"\nkind: ",
			); made != wanted ||
				strings.Contains(out, "Warning") {
				t.Errorf("%d of %d were accepted:\n%s", made, wanted, out)
			}
		})
	}
}

// documents returns the objects of a stream, each as text in one form.
func documents(t *testing.T, text, but string) []string {
	t.Helper()
	var all []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(object) == 0 || object["kind"] == but {
			continue
		}
		normal, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(normal))
	}
	slices.Sort(all)
	return all
}

func TestManifests_kustomize(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	for name, flags := range deployments {
		base := filepath.Join(t.TempDir(), "base")
		manifestsOf(t, append(flags, "--format", "kustomize", "--output-dir", base)...)
		if got, want := documents(t, admin.must("kustomize", base), ""), documents(t, manifestsOf(t, flags...), ""); !slices.Equal(got, want) {
			t.Errorf("%s: kustomize builds\n%s\nplain is\n%s", name, strings.Join(got, "---\n"), strings.Join(want, "---\n"))
		}
		overlay := filepath.Join(filepath.Dir(base), "overlay")
		if err := os.MkdirAll(overlay, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(
			filepath.Join(overlay, "kustomization.yaml"),
			[]byte("resources: [../base]\nimages:\n- name: registry.example.com/wardle\n  newTag: v2\n"),
			0o600,
		); err != nil {
			t.Fatal(err)
		}
		if out := admin.must("kustomize", overlay); !strings.Contains(out, "image: registry.example.com/wardle:v2") {
			t.Errorf("%s: an overlay changes no image:\n%s", name, out)
		}
	}
}

func TestManifests_helm(t *testing.T) {
	for name, flags := range deployments {
		dir := filepath.Join(t.TempDir(), "chart")
		manifestsOf(t, append(flags, "--format", "helm", "--output-dir", dir, "--namespace", "place")...)
		chart, err := loader.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := chart.Validate(); err != nil {
			t.Error(err)
		}
		values, err := chartutil.ToRenderValues(chart, nil, chartutil.ReleaseOptions{Name: "wardle", Namespace: "place", IsInstall: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := engine.Engine{Strict: true}.Render(chart, values)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, text := range rendered {
			all = append(all, text)
		}
		got, want := documents(
			t,
			strings.Join(all, "\n---\n"),
			"",
		), documents(
			t,
			manifestsOf(t, append(flags, "--namespace", "place")...),
			"Namespace",
		)
		if !slices.Equal(got, want) {
			t.Errorf("%s: helm renders\n%s\nplain is\n%s", name, strings.Join(got, "---\n"), strings.Join(want, "---\n"))
		}
	}
}

// runs returns the output of a program, which must succeed.
func runs(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ending(t), program, args...)
	var out, failure strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, failure.String())
	}
	return out.String()
}
