// Package e2e tests real servers with the programs and libraries of users: kubectl, controller-runtime, informers.
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
	update   = flag.Bool("update", false, "rewrite the transcripts in testdata from what the programs print now")
	foreign  = flag.Bool("foreign", false, "install clients in other languages with npm, and test with them")
	released = flag.String("release", "", "an output of make release-dry: pages run with its tool and modules, and without the checkout")
	soak     = flag.Duration("soak", 5*time.Second, "how long writers write while informers and controllers watch")
)

// bin is the directory of the programs under test, first in the PATH of transcripts.
var bin string

// kubectlFlags set the version that a release of kubectl is linked with. Without it kubectl can neither name its own
// version nor compare it with the server's.
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

// build leaves the programs in the repository's bin, where the next run finds them up to date. The facts that foreign
// and pods import are not committed, because they are thousands of redundant lines; so the tests see the tool's
// current output.
func build() error {
	var err error
	if bin, err = filepath.Abs("../bin"); err != nil {
		return err
	}
	kubectl := []string{"go", "build", "-ldflags", kubectlFlags, "-o", bin + "/kubectl", "./cmd/kubectl"}
	if *released != "" {
		return run(kubectl)
	}
	for _, args := range [][]string{
		kubectl,
		{"go", "build", "-o", bin + "/theatre", "./cmd/theatre"},
		{"go", "build", "-o", bin + "/resigned", "./cmd/resigned"},
		{"go", "build", "-o", bin + "/wardle", "example.com/wardle"},
		{"go", "build", "-o", bin + "/cicd", "example.com/cicd"},
		{"go", "build", "-o", bin + "/restaurant", "example.com/restaurant"},
		{"go", "build", "-o", bin + "/devops", "example.com/devops"},
		{"go", "build", "-o", bin + "/annex", "github.com/annexapi/annex/cmd/annex"},
		{"go", "build", "-o", bin + "/kubectl-annex", "github.com/annexapi/annex/cmd/kubectl-annex"},
		{bin + "/annex", "generate", "--for", "k8s.io/api/apps/v1", "--as", "apps.example.com/v1", "./testdata/foreign/apps"},
		{"go", "build", "-o", bin + "/foreign", "./testdata/foreign"},
		{bin + "/annex", "generate", "--for", "k8s.io/api/core/v1", "--as", "v1", "./testdata/pods/core"},
		{"go", "build", "-o", bin + "/pods", "./testdata/pods"},
	} {
		if err := run(args); err != nil {
			return err
		}
	}
	return nil
}

func run(args []string) error {
	cmd := exec.Command(args[0], args[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
