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
		Short: "Write manifests that run the server as an aggregated API server in a cluster",
		Long: `Write the manifests that run the server as an aggregated API server in a cluster:
namespace, service account, exactly the permissions that this server needs with these
flags, workload, and the APIServices that add its kinds to the API of the cluster.

The verb sends no requests to a cluster. Pass its output to kubectl apply. With --format
kustomize it writes a base into a folder, with --format helm a chart. It replaces all files
that it wrote into the folder before, and keeps all other files; an existing file of the
user with the same name is an error. The arguments after -- are flags for serve.`,
		Example: fmt.Sprintf(`  # one replica, with its objects in a volume
  %[1]s manifests --image registry.example.com/%[1]s:v1 | kubectl apply -f -

  # two replicas above etcd, with certificates by cert-manager, as a chart
  %[1]s manifests --image registry.example.com/%[1]s:v1 --storage etcd --etcd-servers https://etcd.example.com:2379 \
      --etcd-secret etcd-client --certificates cert-manager --format helm --output-dir chart

  # a server outside of the cluster
  %[1]s manifests --external 192.0.2.7:8443 | kubectl apply -f -

  # the lean profile: the cluster only authenticates users and authorizes requests
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
			if format == "helm" && len(config.External) > 0 {
				return usage(errors.New("--external has no chart, since there is nothing to configure: use the formats yaml, json or " +
					"kustomize"))
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
	flags.StringVar(&config.Image, "image", "", "container image of the server; required")
	flags.StringVar(&config.Name, "name", "", fmt.Sprintf("name of the server in the cluster, a DNS label; its Service, service account and "+
		"other objects get this name (default: %s)", program.Name))
	flags.StringVar(&config.Namespace, "namespace", "", "namespace of the server (default: its name)")
	flags.IntVar(&config.Replicas, "replicas", 0, "number of replicas (default 2 with etcd, else 1)")
	flags.StringVar(&storage, "storage", embedded.Name, "storage of the objects: embedded or files (in a volume), memory or etcd")
	flags.Var(&size, "storage-size", "size of the volume")
	flags.StringVar(&config.StorageClass, "storage-class", "", "storage class of the volume (default: the cluster's default class)")
	flags.StringSliceVar(
		&config.EtcdServers,
		"etcd-servers",
		nil,
		"URLs of the etcd members; http://localhost:PORT is a container in the server's pod",
	)
	flags.StringVar(&config.EtcdSecret, "etcd-secret", "", "Secret with ca.crt, tls.crt and tls.key for etcd")
	flags.BoolVar(&config.WithEtcd, "with-etcd", false, "also deploy an etcd with one member, as an example")
	flags.StringVar(&config.EtcdImage, "etcd-image", "", "container image of the example etcd (default: etcd's official image, in "+
		"the tested version)")
	flags.StringVar(&config.Certificates, "certificates", manifests.SelfCertified, "source of the serving certificate: self (the server), "+
		"cert-manager, secret=NAME, a Secret of type kubernetes.io/tls that you keep up to date, or, with --external, own, files that you "+
		"give to serve")
	flags.StringSliceVar(&config.External, "external", nil, "addresses of a server outside of the cluster, HOST or HOST:PORT: one DNS "+
		"name, or "+
		"IP addresses; instead of a workload, the manifests have a Service for them (default port 443)")
	flags.BoolVar(&config.InsecureSkipTLSVerify, "insecure-skip-tls-verify", false, "let the cluster call the server without verifying "+
		"its "+
		"certificate; for development: whoever answers for the address reads and changes all requests")
	flags.StringVar(&caFile, "ca-file", "", "file with the certificate authority of secret=NAME or own, for the caBundle of the "+
		"APIServices (PEM)")
	flags.StringSliceVar(
		&config.DisablePlugins,
		"disable-admission-plugins",
		nil,
		"admission plugins to disable: "+strings.Join(requirements.Plugins(), ", "),
	)
	flags.BoolVar(&flowControl, "enable-priority-and-fairness", true, "queue requests by the cluster's flow schemas and priority levels")
	flags.IntVar(&config.GroupPriority, "group-priority", 1000, "groupPriorityMinimum of the APIServices, 1 to 20000")
	flags.BoolVar(&config.UserRoles, "user-roles", false, "add the namespaced kinds to the cluster's roles view, edit and admin")
	flags.BoolVar(&config.SeparateControllers, "separate-controllers", false, "run the server's controllers in two separate pods, which "+
		"elect a leader, instead of in the server")
	flags.BoolVar(&config.ServiceMonitor, "service-monitor", false, "add a ServiceMonitor for the Prometheus operator")
	flags.StringVar(&format, "format", "yaml", "format of the manifests: yaml or json (to standard output), "+
		"kustomize or helm (into a folder)")
	flags.StringVar(&dir, "output-dir", "", "output folder for kustomize and helm; replaces all files of the previous run")
	flags.BoolVar(&dryRun, "dry-run", false, "print the changes to the files of the folder, and write nothing")
	return cmd
}

// deployedStorages returns the storage with the given name, and the etcd at the given servers for kinds that are
// kept in an etcd of their own.
func deployedStorages(name string, servers []string, definition *define.Server) (main driver.Driver, others []driver.Driver, err error) {
	inEtcd := slices.ContainsFunc(definition.Kinds(), func(k *define.Kind) bool { return k.Storage != nil && k.Storage.Name() == etcd.Name })
	switch {
	case name == etcd.Name && len(servers) == 0:
		return nil, nil, errors.New("--storage etcd requires --etcd-servers, or --with-etcd for an example etcd")
	case name != etcd.Name && len(servers) > 0 && !inEtcd:
		return nil, nil, fmt.Errorf("--storage %s does not use etcd: remove --with-etcd, --etcd-servers and --etcd-secret, or use "+
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
			return fmt.Errorf("--output-dir requires --format kustomize or helm; the format %s is written to standard output", format)
		}
		if dryRun {
			return errors.New("--dry-run requires --output-dir")
		}
	case "kustomize", "helm":
		if dir == "" {
			return fmt.Errorf("--format %s requires --output-dir", format)
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
