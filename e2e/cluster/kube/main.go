package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// patience is the time that a cluster has to start.
const patience = 2 * time.Minute

// Main runs the tests of a package in a folder of e2e/cluster beside a cluster, and returns the exit code. It sets
// Bin and Dir of the options: the programs are those of the repository's bin, and their output is kept if a test
// fails. started is called with the cluster before the tests.
func Main(m *testing.M, options Options, started func(*Cluster) error) int {
	dir, err := os.MkdirTemp("", "annex-cluster-")
	code := 1
	if err == nil {
		options.Dir = dir
		code, err = runTests(m, options, started)
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
	return code
}

func runTests(m *testing.M, options Options, started func(*Cluster) error) (int, error) {
	var err error
	if options.Bin, err = filepath.Abs("../../../bin"); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	host, err := Start(ctx, options)
	if err != nil {
		return 0, err
	}
	if err := started(host); err != nil {
		return 0, errors.Join(err, host.Stop())
	}
	code := m.Run()
	return code, host.Stop()
}
