package standin

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/capabilities"

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
	controllers, err := p.controllers()
	if err != nil {
		return p.fail("kube-apiserver", err)
	}
	start, err := newStart(settings, p.personality(), controllers)
	if err != nil {
		return p.fail("kube-apiserver", err)
	}
	ctx, stop := lifetime()
	defer stop()
	capabilities.Setup(start.privileged, 0)
	remove, err := start.authenticate()
	if err != nil {
		return p.fail("kube-apiserver", err)
	}
	defer remove()
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
	// privileged permits privileged containers. A kube-apiserver does not, unless it is told to.
	privileged bool
	// anonymous is whether requests without credentials have a user, if a flag decides it.
	anonymous *bool
	// permitsAll is set if all requests are permitted.
	permitsAll bool
	// authentication is the file of the issuers and of the rules for anonymous requests, if there is one.
	authentication string
}

func newStart(settings []setting, personality Personality, controllers []string) (*start, error) {
	if personality == LikeCluster {
		controllers = append([]string{"*"}, controllers...)
	}
	to := &start{args: []string{
		"serve", "--storage=memory", "--data-dir=", "--no-kubeconfig", "--console=false", "--swagger-ui=false",
		"--controllers=" + strings.Join(controllers, ","),
	}}
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
	if to.anonymous != nil && to.authentication != "" {
		return nil, errors.New("--anonymous-auth: the file of --authentication-config has the field anonymous instead")
	}
	return to, nil
}

// authenticate adds the flag for the rules of requests without credentials. They are a kube-apiserver's: such requests have
// the user system:anonymous, whose rights are decided as any user's, unless a flag denies it or all users have all rights. The
// returned function removes the file of the rules when the server has ended.
func (to *start) authenticate() (remove func(), err error) {
	if to.authentication != "" {
		to.args = append(to.args, "--authentication-config="+to.authentication)
		return func() {}, nil
	}
	anonymous := !to.permitsAll && (to.anonymous == nil || *to.anonymous)
	file, err := os.CreateTemp("", "annex-kube-apiserver-*.yaml")
	if err != nil {
		return nil, fmt.Errorf("--anonymous-auth: %w", err)
	}
	remove = func() { _ = os.Remove(file.Name()) } // a file that stays does no harm
	const rules = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: %t}\n"
	_, err = fmt.Fprintf(file, rules, anonymous)
	if err := errors.Join(err, file.Close()); err != nil {
		remove()
		return nil, fmt.Errorf("--anonymous-auth: %w", err)
	}
	to.args = append(to.args, "--authentication-config="+file.Name())
	return remove, nil
}

// elsewhere are admission plugins that a control plane always has or whose work it does elsewhere.
var elsewhere = []string{"NamespaceLifecycle", "AlwaysAdmit"}

func (to *start) translate(s setting) error {
	switch s.name {
	case "authorization-mode":
		modes := slices.DeleteFunc(list(s.value), func(mode string) bool { return mode == "Node" }) // there are no nodes
		to.args = append(to.args, "--authorization-mode="+strings.Join(modes, ","))
		to.permitsAll = slices.Contains(modes, "AlwaysAllow")
	case "allow-privileged":
		var err error
		to.privileged, err = parseBool(s)
		return err
	case "anonymous-auth":
		on, err := parseBool(s)
		to.anonymous = &on
		return err
	case "authentication-config":
		to.authentication = s.value
	case "enable-admission-plugins", "disable-admission-plugins":
		names := slices.DeleteFunc(list(s.value), func(name string) bool { return slices.Contains(elsewhere, name) })
		if len(names) > 0 {
			to.args = append(to.args, "--"+s.name+"="+strings.Join(names, ","))
		}
	case "feature-gates":
		if err := utilfeature.DefaultMutableFeatureGate.Set(s.value); err != nil {
			return fmt.Errorf("--feature-gates: %w", err)
		}
		for _, name := range unsupported {
			if utilfeature.DefaultFeatureGate.Enabled(name) {
				return fmt.Errorf("--feature-gates %s: this kube-apiserver lacks %s: add %[2]s=false", s.value, name)
			}
		}
	case "service-cluster-ip-range":
		to.kinds.ServiceIPRanges = list(s.value)
		for _, text := range to.kinds.ServiceIPRanges {
			if _, err := netip.ParsePrefix(text); err != nil {
				return fmt.Errorf("--%s %s: want ranges such as 10.0.0.0/24", s.name, text)
			}
		}
	case "service-node-port-range":
		to.kinds.ServiceNodePorts = s.value
	case "v":
		to.args = append(to.args, "--verbosity="+s.value)
	}
	// version is answered before
	return nil
}

// unsupported are the feature gates that are off by default, and would change answers if they were on.
var unsupported = []featuregate.Feature{
	features.APIServerWebhookAuthenticationToken, features.CBORServingAndStorage, features.CoordinatedLeaderElection,
	features.ShardedListAndWatch, features.StorageVersionAPI,
}

// parseBool returns the value of a setting that is true or false.
func parseBool(s setting) (bool, error) {
	on, err := strconv.ParseBool(s.value)
	if err != nil {
		return false, fmt.Errorf("--%s %s: want true or false", s.name, s.value)
	}
	return on, nil
}
