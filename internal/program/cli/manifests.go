package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/manifests"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

func manifestsCommand(program Program) *cobra.Command {
	var format, dir, caFile, storage string
	var dryRun bool
	config := manifests.Config{}
	size := resource.QuantityValue{Quantity: resource.MustParse("1Gi")}
	flowControl := true
	cmd := &cobra.Command{
		Use:   "manifests [flags] [-- SERVE-FLAGS]",
		Short: "Write what a cluster needs to run the server as an aggregated API server",
		Long: `Write what a cluster needs to run the server as an aggregated API server: its
namespace and service account, the permissions that this server needs with these flags
and no others, what runs it, and the APIServices that make its kinds the cluster's.

Nothing is asked of a cluster. What is printed goes to kubectl apply; with --format
kustomize it is a base in a folder, with --format helm a chart. A folder is written anew
as a whole; files in it that this verb has not written are left alone, and one that is in
the way is an error. What follows -- are more flags for serve.`,
		Example: fmt.Sprintf(`  # one replica that keeps its objects in a volume
  %[1]s manifests --image registry.example.com/%[1]s:v1 | kubectl apply -f -

  # two replicas above etcd, with certificates by cert-manager, as a chart
  %[1]s manifests --image registry.example.com/%[1]s:v1 --storage etcd --etcd-servers https://etcd.example.com:2379 \
      --etcd-secret etcd-client --certificates cert-manager --format helm --output-dir chart

  # the lean profile: nothing of the cluster is read but who its callers are and what they may do
  %[1]s manifests --image registry.example.com/%[1]s:v1 --certificates secret=%[1]s-tls --enable-priority-and-fairness=false \
      --disable-admission-plugins NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook`, program.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return usage(fmt.Errorf("unknown argument %q; flags for serve come after --", args[0]))
			}
			definition, err := program.server()
			if err != nil {
				return err
			}
			config.Definition, config.Args, config.StorageSize, config.WithoutFlowControl = definition, args, size.Quantity, !flowControl
			if caFile != "" {
				if config.CABundle, err = readCABundle(caFile); err != nil {
					return usage(err)
				}
			}
			config.Storage = func(servers []string) (driver.Driver, []driver.Driver, error) {
				return deployedStorages(storage, servers, definition)
			}
			if err := config.Complete(); err != nil {
				return usage(err)
			}
			if err := checkFormat(format, dir, dryRun); err != nil {
				return usage(err)
			}
			for _, note := range config.Notes() {
				fmt.Fprintln(cmd.ErrOrStderr(), "note: "+flagNames(note))
			}
			return writeManifests(cmd.OutOrStdout(), &config, format, dir, dryRun)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.Image, "image", "", "container image of the server; must be given")
	flags.StringVar(&config.Name, "name", "", fmt.Sprintf("what the server is called in the cluster: a DNS label, which its service, "+
		"service account and other objects are named after (default: %s)", program.Name))
	flags.StringVar(&config.Namespace, "namespace", "", "namespace to run it in (default: its name)")
	flags.IntVar(&config.Replicas, "replicas", 0, "how many of it run (default 2 above etcd, else 1)")
	flags.StringVar(&storage, "storage", embedded.Name, "where objects are kept: embedded or files (in a volume), memory or etcd")
	flags.Var(&size, "storage-size", "size of the volume")
	flags.StringVar(&config.StorageClass, "storage-class", "", "class of the volume (default: the cluster's)")
	flags.StringSliceVar(
		&config.EtcdServers,
		"etcd-servers",
		nil,
		"URLs of etcd's members; http://localhost:PORT is one in the server's own pod",
	)
	flags.StringVar(&config.EtcdSecret, "etcd-secret", "", "Secret with ca.crt, tls.crt and tls.key for etcd")
	flags.BoolVar(&config.WithEtcd, "with-etcd", false, "deploy an etcd of one member besides, as an example")
	flags.StringVar(&config.EtcdImage, "etcd-image", "", "its container image (default: etcd's own, of the version that is tested)")
	flags.StringVar(&config.Certificates, "certificates", manifests.SelfCertified, "who makes the serving certificate: self (the server), "+
		"cert-manager, or secret=NAME, a Secret of type kubernetes.io/tls that you keep up to date")
	flags.StringVar(&caFile, "ca-file", "", "authority of the certificate in secret=NAME, for the APIServices (PEM)")
	flags.StringSliceVar(
		&config.DisablePlugins,
		"disable-admission-plugins",
		nil,
		"admission plugins of the cluster to leave out: "+strings.Join(requirements.Plugins(), ", "),
	)
	flags.BoolVar(&flowControl, "enable-priority-and-fairness", true, "share the server fairly, as the cluster's flow schemas say")
	flags.IntVar(&config.GroupPriority, "group-priority", 1000, "groupPriorityMinimum of the APIServices, 1 to 20000")
	flags.BoolVar(&config.UserRoles, "user-roles", false, "add the namespaced kinds to the cluster's roles view, edit and admin")
	flags.BoolVar(&config.SeparateControllers, "separate-controllers", false, "run the server's controllers in two pods of their own, "+
		"which elect a leader, instead of in the server")
	flags.BoolVar(&config.ServiceMonitor, "service-monitor", false, "add a ServiceMonitor for the Prometheus operator")
	flags.StringVar(&format, "format", "yaml", "yaml or json (to standard output), kustomize or helm (into a folder)")
	flags.StringVar(&dir, "output-dir", "", "folder for kustomize and helm, written anew as a whole")
	flags.BoolVar(&dryRun, "dry-run", false, "say what would become of the files in the folder, and write nothing")
	return cmd
}

// deployedStorages returns the storage with the given name, and the etcd at the given servers for kinds that are
// kept in an etcd of their own.
func deployedStorages(name string, servers []string, definition *define.Server) (main driver.Driver, others []driver.Driver, err error) {
	inEtcd := slices.ContainsFunc(definition.Kinds(), func(k *define.Kind) bool { return k.Storage != nil && k.Storage.Name() == etcd.Name })
	switch {
	case name == etcd.Name && len(servers) == 0:
		return nil, nil, errors.New("--storage etcd needs --etcd-servers, or --with-etcd for an example of one")
	case name != etcd.Name && len(servers) > 0 && !inEtcd:
		return nil, nil, fmt.Errorf("--storage %s uses no etcd: leave out --with-etcd, --etcd-servers and --etcd-secret, or choose "+
			"--storage etcd", name)
	}
	s := storageOptions{etcd: etcd.Options{Endpoints: servers}}
	if main, err = s.driver(name, definition); err != nil {
		return nil, nil, fmt.Errorf("--%w", err)
	}
	if inEtcd && len(servers) > 0 {
		others = append(others, etcd.Cluster(s.etcd))
	}
	return main, others, nil
}

func readCABundle(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	if err := manifests.CheckCABundle(text); err != nil {
		return nil, fmt.Errorf("--ca-file %s: %w", path, err)
	}
	return text, nil
}

func checkFormat(format, dir string, dryRun bool) error {
	switch format {
	case "yaml", "json":
		if dir != "" {
			return fmt.Errorf("--output-dir is for --format kustomize and helm; %s goes to standard output", format)
		}
		if dryRun {
			return errors.New("--dry-run: nothing is written without --output-dir")
		}
	case "kustomize", "helm":
		if dir == "" {
			return fmt.Errorf("--format %s needs --output-dir, the folder to write", format)
		}
	default:
		return fmt.Errorf("--format %q: choose yaml, json, kustomize or helm", format)
	}
	return nil
}

func writeManifests(out io.Writer, config *manifests.Config, format, dir string, dryRun bool) error {
	var files []manifests.File
	var err error
	switch format {
	case "yaml":
		text, err := config.YAML()
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	case "json":
		list, err := config.List()
		if err != nil {
			return err
		}
		return printJSON(out, list)
	case "kustomize":
		files, err = config.Kustomize()
	case "helm":
		files, err = config.Helm()
	}
	if err != nil {
		return err
	}
	changes, err := manifests.Write(dir, files, dryRun)
	if err != nil {
		return fmt.Errorf("--output-dir: %w", err)
	}
	for _, change := range changes {
		if _, err := fmt.Fprintf(out, "%s\t%s\n", change.Path, change.What); err != nil {
			return err
		}
	}
	return nil
}
