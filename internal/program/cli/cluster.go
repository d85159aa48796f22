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

// aggregatedFlag is the switch between a server's two lives.
const aggregatedFlag = "aggregated"

// clusterFlags say what an aggregated server has to do with its cluster. They have
// upstream's names.
func clusterFlags(all *pflag.FlagSet, options *config.Options) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := &options.Cluster
	flags.BoolVar(&options.Aggregated, aggregatedFlag, false, "be a part of a cluster: kube-apiserver sends requests, and is asked about "+
		"callers, namespaces and policies (default: true in a pod that has a service account)")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "the cluster that the server is a part of (default: the pod's)")
	flags.StringVar(
		&c.AuthenticationKubeconfig,
		"authentication-kubeconfig",
		"",
		"the cluster that is asked who callers are (default: that of --kubeconfig)",
	)
	flags.StringVar(
		&c.AuthorizationKubeconfig,
		"authorization-kubeconfig",
		"",
		"the cluster that is asked what callers may do (default: that of --kubeconfig)",
	)
	flags.BoolVar(&c.SkipLookup, "authentication-skip-lookup", false, "believe the certificates of files only, not those that the "+
		"cluster's ConfigMap extension-apiserver-authentication names")
	flags.BoolVar(&c.TolerateLookupFailure, "authentication-tolerate-lookup-failure", false, "be ready although that ConfigMap cannot be "+
		"read; callers known by it only are anonymous or refused then")
	flags.StringSliceVar(
		&c.AlwaysAllowPaths,
		"authorization-always-allow-paths",
		cluster.OpenPaths(),
		"paths that are open to all callers; * at the end stands for all that begin so",
	)
	self := &options.SelfCertify
	flags.BoolVar(&self.Enabled, "self-certify", false, "make the serving certificate, keep it in a Secret of the cluster, and the "+
		"APIServices' caBundle up to date")
	flags.StringVar(
		&self.ServiceName,
		"service-name",
		"",
		"service that the APIServices point to, for --self-certify (default: the server's name)",
	)
	flags.StringVar(&self.ServiceNamespace, "service-namespace", "", "its namespace (default: the pod's)")
	flags.DurationVar(
		&self.Lifetime,
		"certificate-lifetime",
		0,
		"how long a certificate of --self-certify lives; it is renewed when a third is left (default 720h)",
	)
	flags.StringVar(&self.Workload, "workload", "", "what runs the server, as in deployments/NAME: when it is scaled to nothing or "+
		"deleted, the server leaves its APIServices")
	flags.StringVar(&c.LeaseNamespace, "leader-elect-resource-namespace", "", "namespace of the cluster's Lease by which replicas agree "+
		"which of them runs the controllers (default: the pod's; else each runs them)")
	flags.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{flagGroup: {clusterGroup}} })
	all.AddFlagSet(flags)
}

// clusterOptions completes the options of serve by what was given and where it runs. A control
// plane stands alone in a pod, too.
func clusterOptions(flags *pflag.FlagSet, options *config.Options, definition *define.Server) error {
	if !flags.Changed(aggregatedFlag) {
		options.Aggregated = cluster.InPod() && definition.Plane == nil
	}
	if !options.Aggregated {
		var mistake error
		flags.Visit(func(f *pflag.Flag) {
			if mistake == nil && f.Name != aggregatedFlag && slices.Contains(f.Annotations[flagGroup], clusterGroup) {
				mistake = usage(fmt.Errorf("--%s is for a server in a cluster: add --%s", f.Name, aggregatedFlag))
			}
		})
		// What they hold are the flags' defaults.
		options.Cluster, options.SelfCertify = config.ClusterOptions{}, config.SelfCertifyOptions{}
		return mistake
	}
	if options.Cluster.AlwaysAllowPaths == nil {
		options.Cluster.AlwaysAllowPaths = []string{}
	}
	return nil
}

// flagGroup is the annotation of a flag that says which part of the help it is in.
const flagGroup = "annex_group"

// clusterGroup is the part of the help whose flags mean nothing to a server that stands alone.
const clusterGroup = "A part of a cluster"

// flagGroups are the parts of serve's help. Flags without the annotation are in the one that
// has the beginning of their names, or else in the first.
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

// groupFlags has the help of a command, and the reference, list its flags in groups.
func groupFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		for _, group := range flagGroups {
			begins := func(prefix string) bool { return strings.HasPrefix(f.Name, prefix) }
			if f.Annotations[flagGroup] == nil && slices.ContainsFunc(group.prefixes, begins) {
				_ = cmd.Flags().SetAnnotation(f.Name, flagGroup, []string{group.title}) // it is there
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

// aggregated is what describe prints of a server's place in a cluster.
type aggregated struct {
	Asks    []asked  `json:"asks"`
	LeftOut []string `json:"leftOut,omitempty"`
}

// asked is what the server reads from its cluster or asks of it.
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

// describeAggregated is nil for a server that stands alone.
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
	fmt.Fprintf(w, "\nAggregated, with what the cluster permits by a binding:\n")
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
