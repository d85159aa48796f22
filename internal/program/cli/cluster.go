package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/cluster"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/plan"
)

// aggregatedFlag is the name of the flag that switches between standalone and aggregated mode.
const aggregatedFlag = "aggregated"

// clusterFlags declares the flags for an aggregated server's relation to its cluster, with upstream's names.
func clusterFlags(all *pflag.FlagSet, options *config.Options) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := &options.Cluster
	flags.BoolVar(&options.Aggregated, aggregatedFlag, false, "run as an aggregated server of a cluster: kube-apiserver sends requests, "+
		"and the server reads users, namespaces and policies from it (default: true in a pod with a service account)")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig of the server's cluster (default: the pod's cluster)")
	flags.StringVar(
		&c.AuthenticationKubeconfig,
		"authentication-kubeconfig",
		"",
		"kubeconfig of the cluster that authenticates users (default: that of --kubeconfig)",
	)
	flags.StringVar(
		&c.AuthorizationKubeconfig,
		"authorization-kubeconfig",
		"",
		"kubeconfig of the cluster that authorizes requests (default: that of --kubeconfig)",
	)
	flags.BoolVar(&c.SkipLookup, "authentication-skip-lookup", false, "use only the certificate authorities from files, and not "+
		"those of the cluster's ConfigMap extension-apiserver-authentication")
	flags.BoolVar(&c.TolerateLookupFailure, "authentication-tolerate-lookup-failure", false, "become ready even if the server cannot "+
		"read that ConfigMap; the server then rejects users that only its authorities can verify, or treats them as anonymous")
	flags.StringSliceVar(
		&c.AlwaysAllowPaths,
		"authorization-always-allow-paths",
		cluster.OpenPaths(),
		"paths that the server serves without authorization; a trailing * matches all paths with the prefix",
	)
	self := &options.SelfCertify
	flags.BoolVar(&self.Enabled, "self-certify", false, "create the serving certificate, store it in a Secret of the cluster, and keep the "+
		"caBundle of the APIServices up to date")
	flags.StringVar(
		&self.ServiceName,
		"service-name",
		"",
		"name of the Service in the APIServices, for --self-certify (default: the server's name)",
	)
	flags.StringVar(&self.ServiceNamespace, "service-namespace", "", "namespace of the Service (default: the pod's)")
	flags.DurationVar(
		&self.Lifetime,
		"certificate-lifetime",
		0,
		"lifetime of certificates of --self-certify; the server renews a certificate when a third of the lifetime is left (default 720h)",
	)
	flags.StringVar(&self.Workload, "workload", "", "workload that runs the server, such as deployments/NAME; the server leaves its "+
		"APIServices when the workload is deleted or scaled to zero")
	flags.StringVar(&c.LeaseNamespace, "leader-elect-resource-namespace", "", "namespace of the Lease in the cluster by which "+
		"replicas elect the one that runs the controllers (default: the pod's; without a namespace, each replica runs them)")
	flags.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{flagGroup: {clusterGroup}} })
	all.AddFlagSet(flags)
}

// clusterKubeconfigs are the flags that name the server's cluster. As in upstream's servers, a server with one of them is aggregated.
var clusterKubeconfigs = []string{"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"}

// clusterOptions completes the options of serve from the flags and from the environment that the process runs in. A
// control plane is standalone even in a pod.
func clusterOptions(flags *pflag.FlagSet, options *config.Options, definition *define.Server) error {
	named := ""
	if i := slices.IndexFunc(clusterKubeconfigs, flags.Changed); i >= 0 {
		named = clusterKubeconfigs[i]
	}
	if !flags.Changed(aggregatedFlag) {
		options.Aggregated = (cluster.InPod() || named != "") && definition.Plane == nil
	}
	if named != "" && !options.Aggregated {
		reason, remedy := "it has a control plane", ""
		if definition.Plane == nil {
			reason, remedy = "of --"+aggregatedFlag+"=false", " or leave out --"+aggregatedFlag+"=false,"
		}
		return usage(fmt.Errorf("--%s is the kubeconfig of a cluster that authenticates and authorizes callers of an aggregated server, "+
			"and this "+
			"server stands alone because %s: leave the flag out,%s and use the kubeconfig that the server writes into its data directory",
			named, reason, remedy))
	}
	if !options.Aggregated {
		var mistake error
		flags.Visit(func(f *pflag.Flag) {
			if mistake == nil && f.Name != aggregatedFlag && slices.Contains(f.Annotations[flagGroup], clusterGroup) {
				mistake = usage(fmt.Errorf("--%s requires an aggregated server: add --%s", f.Name, aggregatedFlag))
			}
		})
		// They hold only the defaults of their flags.
		options.Cluster, options.SelfCertify = config.ClusterOptions{}, config.SelfCertifyOptions{}
		return mistake
	}
	if options.Cluster.AlwaysAllowPaths == nil {
		options.Cluster.AlwaysAllowPaths = []string{}
	}
	return nil
}

// flagGroup is the annotation that assigns a flag to a section of the help.
const flagGroup = "annex_group"

// clusterGroup is the title of the section whose flags have no meaning for a standalone server.
const clusterGroup = "A part of a cluster"

// flagGroups are the sections of serve's help. A flag without the annotation belongs to the section that lists a
// prefix of its name, or else to the first section.
var flagGroups = []struct {
	title    string
	prefixes []string
}{
	{"Flags", nil},
	{
		"Where objects are kept",
		[]string{"storage", "etcd-", "files-", "history-", "encryption-", "object-cache-", "value-cache-", "serve-despite-"},
	},
	{
		"Listening and certificates",
		[]string{
			"bind-",
			"secure-",
			"insecure-",
			"unix-",
			"tls-",
			"cert-",
			"http2-",
			"disable-http2-",
			"goaway-",
			"external-",
			"cors-",
			"strict-transport-",
		},
	},
	{
		callersGroup,
		[]string{
			"ephemeral-token",
			"authentication-",
			"authn-",
			"authorization-",
			"client-ca-",
			"login-",
			"requestheader-",
			"token-auth-",
			"user-file",
		},
	},
	{"Service accounts", []string{"service-account-", "api-audiences"}},
	{"Audit and access log", []string{"audit-", "access-log"}},
	{"Admission", []string{"admission-", "enable-admission-", "disable-admission-"}},
	{clusterGroup, nil},
}

// groupFlags lists the flags of a command by section, in its help and in the reference.
func groupFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		for _, group := range flagGroups {
			begins := func(prefix string) bool { return strings.HasPrefix(f.Name, prefix) }
			if f.Annotations[flagGroup] == nil && slices.ContainsFunc(group.prefixes, begins) {
				_ = cmd.Flags().SetAnnotation(f.Name, flagGroup, []string{group.title}) // the flag exists
			}
		}
	})
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		groups := map[string]*pflag.FlagSet{}
		for _, group := range flagGroups {
			groups[group.title] = pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			title := flagGroups[0].title
			if in := f.Annotations[flagGroup]; len(in) > 0 {
				title = in[0]
			}
			groups[title].AddFlag(f)
		})
		text := fmt.Sprintf("Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, group := range flagGroups {
			text += fmt.Sprintf("\n%s:\n%s", group.title, groups[group.title].FlagUsages())
		}
		_, err := io.WriteString(cmd.OutOrStderr(), text)
		return err
	})
}

// aggregated is the part of describe's output about the server's place in a cluster.
type aggregated struct {
	Asks    []asked  `json:"asks"`
	LeftOut []string `json:"leftOut,omitempty"`
}

// asked is a permission that the server needs in its cluster.
type asked struct {
	Verbs     []string `json:"verbs"`
	Group     string   `json:"group,omitempty"`
	Resource  string   `json:"resource"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	For       string   `json:"for"`
	Binding   string   `json:"binding,omitempty"`
	Optional  bool     `json:"optional,omitempty"`

	text string
}

// describeAggregated returns nil for a standalone server.
func describeAggregated(p *plan.Plan) *aggregated {
	needs, leftOut := p.Requirements()
	if needs == nil {
		return nil
	}
	d := &aggregated{LeftOut: leftOut}
	for _, n := range needs {
		d.Asks = append(d.Asks, asked{n.Verbs, n.Group, n.Resource, n.Namespace, n.Name, n.For, n.Binding.String(), n.Optional, n.String()})
	}
	return d
}

func (d *aggregated) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nAggregated, with permissions that the cluster grants by a binding:\n")
	for _, a := range d.Asks {
		binding := a.Binding
		if a.Optional {
			binding = strings.TrimPrefix(binding+", may be missing", ", ")
		}
		line := fmt.Sprintf("  %s\t%s\t%s", a.text, a.For, binding)
		fmt.Fprintln(w, strings.TrimRight(line, "\t"))
	}
	if len(d.LeftOut) > 0 {
		fmt.Fprintf(w, "Left out: %s\n", strings.Join(d.LeftOut, ", "))
	}
	return w.Flush()
}
