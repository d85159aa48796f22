package cli

import (
	"strings"
	"testing"
)

func TestCompleteValues(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"serve --storage":          "embedded files memory etcd",
		"describe --storage":       "embedded files memory etcd",
		"manifests --storage":      "embedded files memory etcd",
		"manifests --format":       "helm json kustomize yaml",
		"manifests --certificates": "cert-manager secret= self",
		"storage stats --storage":  "embedded files memory etcd",
		"storage stats --output":   "json",
		"storage migrate --to":     "etcd-snapshot= embedded files etcd",
		"storage migrate --from":   "embedded files etcd",
		"serve --disable-admission-plugins": "NamespaceLifecycle MutatingAdmissionPolicy MutatingAdmissionWebhook ValidatingAdmissionPolicy " +
			"ValidatingAdmissionWebhook",
	} {
		var out, errOut strings.Builder
		line := append([]string{"__complete"}, append(strings.Fields(args), "")...)
		if code := Run(t.Context(), Program{Name: "shop"}, line, &out, &errOut); code != 0 {
			t.Fatalf("%s: exit code %d: %s", args, code, errOut.String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := strings.Join(lines[:len(lines)-1], " "); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	var out, errOut strings.Builder
	Run(
		t.Context(),
		Program{Name: "shop"},
		[]string{"__complete", "serve", "--disable-admission-plugins", "NamespaceLifecycle,MutatingAdmissionP"},
		&out,
		&errOut,
	)
	if got := out.String(); !strings.HasPrefix(got, "NamespaceLifecycle,MutatingAdmissionPolicy\n") ||
		strings.Contains(got, "NamespaceLifecycle,NamespaceLifecycle") {
		t.Errorf("the second of several: %q", got)
	}
}
