package standin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

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
	args, err := serveArgs(settings, p.personality())
	if err != nil {
		return p.fail("kube-apiserver", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := withParent(ctx)
	defer cancel()
	server := annex.Server{
		Name: "kube-apiserver", Title: "Kubernetes", Version: kubeVersion,
		ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New()}),
	}
	return servers.Run(ctx, server, args, p.stdout, p.stderr)
}

// serveArgs translates flags of a kube-apiserver to those of a server of Annex.
func serveArgs(settings []setting, personality Personality) ([]string, error) {
	args := []string{"serve", "--storage=memory", "--no-kubeconfig", "--console=false", "--swagger-ui=false"}
	if personality == LikeEnvtest {
		args = append(args, "--controllers=")
	}
	for _, s := range settings {
		switch known[s.name] {
		case same:
			args = append(args, "--"+s.name+"="+s.value)
		case special:
			translated, err := translate(s)
			if err != nil {
				return nil, err
			}
			args = append(args, translated...)
		}
	}
	return args, nil
}

// elsewhere are admission plugins that a control plane always has or whose work it does elsewhere.
var elsewhere = []string{"NamespaceLifecycle", "AlwaysAdmit"}

func translate(s setting) ([]string, error) {
	switch s.name {
	case "authorization-mode":
		modes := slices.DeleteFunc(list(s.value), func(mode string) bool { return mode == "Node" }) // there are no nodes
		return []string{"--authorization-mode=" + strings.Join(modes, ",")}, nil
	case "enable-admission-plugins", "disable-admission-plugins":
		names := slices.DeleteFunc(list(s.value), func(name string) bool { return slices.Contains(elsewhere, name) })
		if len(names) == 0 {
			return nil, nil
		}
		return []string{"--" + s.name + "=" + strings.Join(names, ",")}, nil
	case "feature-gates":
		if err := utilfeature.DefaultMutableFeatureGate.Set(s.value); err != nil {
			return nil, fmt.Errorf("--feature-gates: %w", err)
		}
		return nil, nil
	case "v":
		return []string{"--verbosity=" + s.value}, nil
	default: // version is answered before, and requests without credentials get the same rights either way
		return nil, nil
	}
}
