// Package alone runs one of our servers standing alone, for tests that compare it with a real kube-apiserver.
package alone

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Serve runs the sample wardle, standing alone, until the test is done, and returns its administrator's
// configuration. The test is in a folder of e2e/cluster.
func Serve(t *testing.T, flags ...string) *rest.Config {
	t.Helper()
	return serve(t, "samples/wardle", flags)
}

// ServeControlPlane is Serve with `annex serve` in place of the sample: the kinds of a control plane, and the kinds
// of definitions.
func ServeControlPlane(t *testing.T, flags ...string) *rest.Config {
	t.Helper()
	return serve(t, "cmd/annex", flags)
}

func serve(t *testing.T, source string, flags []string) *rest.Config {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(source))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("../../..", source)
	build.Env = append(os.Environ(), "GOWORK=", "PWD=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	data := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command(program, append([]string{"serve", "--data-dir", data, "--storage", "memory", "--secure-port", "0"}, flags...)...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v\n%s", err, &log)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, " listens on ") {
		t.Fatalf("the server said %q, %v", line, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}
