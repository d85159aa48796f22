package foreign

import (
	"bufio"
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/e2e/cluster/gomod"
	"github.com/annexapi/annex/e2e/cluster/kube"
)

// refusedByBoth are cases of gateway-api's own tests that fail on the compared version of kube-apiserver: its message
// has more about the object than the case expects.
var refusedByBoth = []string{
	"TestHTTPRouteTimeouts/invalid_timeout_request_200ms_less_than_backendRequest_1s",
}

// Gateway-api's own tests of the rules in its definitions have the same results on both servers, and pass.
func TestGatewayAPI_validationRules(t *testing.T) {
	dir := gomod.Dir(t, "sigs.k8s.io/gateway-api@v1.4.0")
	for channel, least := range map[string]int{"standard": 130, "experimental": 216} {
		t.Run(channel, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "cel.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", channel, "-o", program, "./pkg/test/cel")
			build.Dir = dir
			build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "PWD=")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", build, err, out)
			}
			all := definitionsIn(t, dir, []string{"config/crd/" + channel + "/*.yaml"})
			said := map[string]map[string]bool{}
			for name, config := range map[string]*rest.Config{"kube-apiserver": host.Admin(), "annex": alone.ServeControlPlane(t)} {
				connect(t, name, config).establishForTest(t, all)
				said[name] = passes(t, program, config)
			}
			theirs, ours := said["kube-apiserver"], said["annex"]
			if !maps.Equal(theirs, ours) {
				for _, test := range slices.Sorted(maps.Keys(theirs)) {
					if is, ran := ours[test]; !ran || is != theirs[test] {
						t.Errorf("%s: passes with kube-apiserver: %t; with annex: %t", test, theirs[test], is)
					}
				}
				t.Errorf("kube-apiserver ran %d cases, annex %d", len(theirs), len(ours))
			}
			if len(ours) < least {
				t.Errorf("%d cases, at least %d are there", len(ours), least)
			}
			failed := 0
			for test, passed := range ours {
				if !passed && !slices.Contains(refusedByBoth, test) {
					t.Errorf("%s fails", test)
				}
				if !passed {
					failed++
				}
			}
			t.Logf("%d cases say the same of both, of which %d fail with both", len(ours), failed)
		})
	}
}

// passes runs tests that find their server by KUBECONFIG, and returns for each case without subcases whether it
// passed.
func passes(t *testing.T, program string, config *rest.Config) map[string]bool {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, config); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.v")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.CombinedOutput() // fails with a case
	all := map[string]bool{}
	for scanner := bufio.NewScanner(bytes.NewReader(out)); scanner.Scan(); {
		line := strings.TrimSpace(scanner.Text())
		for prefix, passed := range map[string]bool{"--- PASS: ": true, "--- FAIL: ": false} {
			if rest, found := strings.CutPrefix(line, prefix); found {
				name, _, _ := strings.Cut(rest, " ")
				all[name] = passed
			}
		}
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool {
		for other := range all {
			if strings.HasPrefix(other, name+"/") {
				return true
			}
		}
		return false
	})
	if len(all) == 0 {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return all
}
