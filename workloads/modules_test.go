package workloads_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A staging module that is not required would be k8s.io/kubernetes's v0.0.0 in the modules of users, whose go mod tidy fails then.
func TestModules_allStagingModules_areRequired(t *testing.T) {
	t.Parallel()
	file, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := os.ReadFile(strings.TrimSpace(string(file)))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	staging := regexp.MustCompile(`(?m)^\s*(k8s\.io/\S+) v0\.0\.0$`).FindAllStringSubmatch(string(upstream), -1)
	if len(staging) < 25 {
		t.Fatalf("k8s.io/kubernetes requires only %d modules at v0.0.0", len(staging))
	}
	for _, m := range staging {
		required := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(m[1]) + ` v0\.[1-9]`)
		if !required.Match(ours) {
			t.Errorf("go.mod does not require %s: name it in modules.go, and run go mod tidy", m[1])
		}
	}
}
