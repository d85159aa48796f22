// Package cluster tests servers that have joined a Kubernetes cluster: kubectl and client-go send requests to a real
// kube-apiserver, which forwards them.
package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// patience bounds every wait. Only a failure reaches it: the controllers of kube-controller-manager look for new
// resources every half minute.
const patience = testwait.Patience

var (
	// host is the cluster of all tests.
	host *kube.Cluster
	// bin is the directory of the programs under test, and run the directory of all their output. It is kept if a
	// test fails.
	bin, run string
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		_ = os.RemoveAll(run)
	} else {
		fmt.Fprintln(os.Stderr, "logs, data and keys are kept in", run)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	var err error
	if bin, err = filepath.Abs("../../bin"); err != nil {
		return 0, err
	}
	if run, err = os.MkdirTemp("", "annex-cluster-"); err != nil {
		return 0, err
	}
	for program, dir := range map[string]string{"wardle": "../../samples/wardle", "cicd": "../../samples/cicd",
		"theatre": "../cmd/theatre", "restaurant": "../../samples/restaurant", "devops": "../../samples/devops"} {
		if err := build(program, dir); err != nil {
			return 0, err
		}
	}
	dir := filepath.Join(run, "host")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	if host, err = kube.Start(ctx, kube.Options{Bin: bin, Dir: dir}); err != nil {
		return 0, err
	}
	fmt.Printf("cluster: serves after %s\n", time.Since(began).Round(time.Millisecond))
	code := m.Run()
	return code, host.Stop()
}

// build leaves a program in the repository's bin, built as the e2e module does: in the workspace, which this module
// does not belong to.
func build(program, dir string) error {
	cmd := exec.Command("go", "build", "-o", filepath.Join(bin, program), ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=", "PWD=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
