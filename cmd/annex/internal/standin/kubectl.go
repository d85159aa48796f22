package standin

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

// runKubectl is kubectl itself.
func runKubectl(p program) int {
	// kubectl reads the command line of its process.
	os.Args = append([]string{"kubectl"}, p.args...)
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
		return 1
	}
	return 0
}
