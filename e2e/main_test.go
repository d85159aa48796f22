// Package e2e drives real servers with the programs and libraries that users
// drive them with: kubectl, controller-runtime, informers.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	update = flag.Bool("update", false, "rewrite the transcripts in testdata from what the programs print now")
	soak   = flag.Duration("soak", 5*time.Second, "how long writers write while informers and controllers watch")
)

// bin is the directory of the programs under test, first in the PATH of
// transcripts.
var bin string

// The version of kubectl is what a release of it is linked with. Without it
// kubectl can neither name itself nor compare itself with the server.
const kubectlFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v1.37.2" +
	" -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=37"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// build leaves the programs in the repository's bin, where the next run finds
// them up to date.
func build() error {
	var err error
	if bin, err = filepath.Abs("../bin"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-ldflags", kubectlFlags, "-o", bin + "/kubectl", "./cmd/kubectl"},
		{"-o", bin + "/theatre", "./cmd/theatre"},
		{"-o", bin + "/wardle", "example.com/wardle"},
		{"-o", bin + "/cicd", "example.com/cicd"},
		{"-o", bin + "/annex", "github.com/annexapi/annex/cmd/annex"},
	} {
		cmd := exec.Command("go", append([]string{"build"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return nil
}
