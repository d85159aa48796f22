package standin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	servers "github.com/annexapi/annex/program"
	"github.com/annexapi/annex/workloads"
)

// kubeVersion is the version of Kubernetes whose API is served.
const kubeVersion = "v1.37.2"

// runAPIServer serves until the parent ends or a signal arrives.
func runAPIServer(p program) int {
	settings, err := parse(p.args, p.stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return p.fail("kube-apiserver", err)
	case slices.ContainsFunc(settings, func(s setting) bool { return s.name == "version" }):
		fmt.Fprintf(p.stdout, "Kubernetes %s\n", kubeVersion)
		return 0
	}
	start, err := newStart(settings, p.personality())
	if err != nil {
		return p.fail("kube-apiserver", err)
	}
	ctx, stop := lifetime()
	defer stop()
	server := annex.Server{
		Name: "kube-apiserver", Title: "Kubernetes", Version: kubeVersion,
		ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New(start.kinds)}),
	}
	return servers.Run(ctx, server, start.args, p.stdout, p.stderr)
}

// start has the translated flags of one start.
type start struct {
	// args are the command line of a server of Annex.
	args  []string
	kinds workloads.Options
}

func newStart(settings []setting, personality Personality) (*start, error) {
	to := &start{args: []string{"serve", "--storage=memory", "--data-dir=", "--no-kubeconfig", "--console=false", "--swagger-ui=false"}}
	if personality == LikeEnvtest {
		to.args = append(to.args, "--controllers=")
	}
	for _, s := range settings {
		switch known[s.name] {
		case same:
			to.args = append(to.args, "--"+s.name+"="+s.value)
		case special:
			if err := to.translate(s); err != nil {
				return nil, err
			}
		}
	}
	return to, nil
}

// elsewhere are admission plugins that a control plane always has or whose work it does elsewhere.
var elsewhere = []string{"NamespaceLifecycle", "AlwaysAdmit"}

func (to *start) translate(s setting) error {
	switch s.name {
	case "authorization-mode":
		modes := slices.DeleteFunc(list(s.value), func(mode string) bool { return mode == "Node" }) // there are no nodes
		to.args = append(to.args, "--authorization-mode="+strings.Join(modes, ","))
	case "enable-admission-plugins", "disable-admission-plugins":
		names := slices.DeleteFunc(list(s.value), func(name string) bool { return slices.Contains(elsewhere, name) })
		if len(names) > 0 {
			to.args = append(to.args, "--"+s.name+"="+strings.Join(names, ","))
		}
	case "feature-gates":
		if err := utilfeature.DefaultMutableFeatureGate.Set(s.value); err != nil {
			return fmt.Errorf("--feature-gates: %w", err)
		}
	case "service-cluster-ip-range":
		to.kinds.ServiceIPRanges = list(s.value)
	case "service-node-port-range":
		to.kinds.ServiceNodePorts = s.value
	case "v":
		to.args = append(to.args, "--verbosity="+s.value)
	}
	// version is answered before, and requests without credentials get the same rights with and without anonymous-auth
	return nil
}
