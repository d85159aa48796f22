// Package foreign runs what other projects ship against `annex serve`: their definitions and samples, as a real kube-apiserver takes
// them, their own tests, Helm, and controllers.
package foreign

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testwait"
)

var host *kube.Cluster

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "annex-foreign-")
	code := 1
	if err == nil {
		code, err = runTests(m, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		_ = os.RemoveAll(dir)
	} else {
		fmt.Fprintln(os.Stderr, "logs, data and keys are kept in", dir)
	}
	os.Exit(code)
}

func runTests(m *testing.M, dir string) (int, error) {
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testwait.Patience)
	defer cancel()
	if host, err = kube.Start(ctx, kube.Options{Bin: bin, Dir: dir, Controllers: []string{}}); err != nil {
		return 0, err
	}
	code := m.Run()
	return code, host.Stop()
}
