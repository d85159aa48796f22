package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/cmd/annex/internal/deploy"
	"github.com/annexapi/annex/cmd/annex/internal/dev"
	"github.com/annexapi/annex/cmd/annex/internal/image"
)

// clusterFlags select the cluster of a verb.
type clusterFlags struct{ kubeconfig, context string }

func (f *clusterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, or ~/.kube/config)")
	cmd.Flags().StringVar(&f.context, "context", "", "context in the kubeconfig (default: its current one)")
}

// config returns the cluster's configuration. A missing configuration is a mistake in the command line.
func (f *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context}).
		ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, usageError{errors.New("no cluster: set --kubeconfig or KUBECONFIG")}
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("kubeconfig: %w", err)}
	}
	config.UserAgent = "annex"
	return config, nil
}

// deployFlags are the flags of deploy, and of run --in-cluster.
type deployFlags struct {
	imageFlags
	clusterFlags
	name, namespace        string
	noBuild, force, dryRun bool
	timeout                time.Duration
}

func (f *deployFlags) add(cmd *cobra.Command) {
	f.imageFlags.add(cmd)
	f.clusterFlags.add(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "name of the server in the cluster (default: its own name)")
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "namespace of the server (default: its name)")
	cmd.Flags().BoolVar(&f.force, "force-conflicts", false, "take over fields that other field managers have set")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "time to wait until the cluster serves the APIs; the exit code is 1 if "+
		"it does not; 0 does not wait")
}

func newDeploy() *cobra.Command {
	var flags deployFlags
	cmd := &cobra.Command{
		Use:   "deploy [PACKAGE] --image REGISTRY/NAME:TAG [-- MANIFESTS-FLAGS]",
		Short: "Run a project's server in a cluster, as an aggregated API server",
		Long: `Builds a container image of a project's server and pushes it, as annex image does; applies the
output of the server's verb manifests, with the flags after --; and waits until the APIServices
are available. The manifests use the digest of the image.

The field manager annex-deploy owns the applied fields. Run the verb again to deploy changes,
and annex uninstall to remove the server.`,
		Example: `  annex deploy --image registry.example.com/demo:v1 --name demo --namespace demo
  annex deploy --image registry.example.com/demo:v1 -- --storage etcd --etcd-servers https://etcd.example.com:2379
  annex deploy --image registry.example.com/demo:v1 --no-build   # use an existing image
  annex deploy --image registry.example.com/demo:v1 --dry-run    # change nothing`,
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.ArgsLenAtDash()
			if at < 0 {
				at = len(args)
			}
			return flags.deploy(cmd.Context(), args[:at], args[at:], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&flags.noBuild, "no-build", false, "deploy the existing image from its registry, without a build")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "send the manifests to the cluster as a dry run, and change nothing")
	return cmd
}

// check returns mistakes in the command line.
func (f *deployFlags) check(ctx context.Context, args []string) error {
	if _, _, err := f.project(ctx, args, func(string, ...any) {}); err != nil {
		return usageError{fmt.Errorf("run: %w", err)}
	}
	_, err := f.config()
	return err
}

func (f *deployFlags) deploy(ctx context.Context, args, manifests []string, stdout, stderr io.Writer) error {
	say := sayTo(stdout)
	options, tag, err := f.project(ctx, args, sayTo(stderr))
	if err != nil {
		return usageError{fmt.Errorf("deploy: %w", err)}
	}
	config, err := f.config()
	if err != nil {
		return err
	}
	cluster, err := deploy.New(config, say)
	if err != nil {
		return err
	}
	if err := cluster.Ask(); err != nil {
		return err
	}
	ref := tag.String()
	if !f.noBuild {
		made, err := image.Build(ctx, options)
		if err != nil {
			return err
		}
		ref += "@" + made.Digest
		if !f.dryRun {
			if err := made.Push(ctx, tag); err != nil {
				return err
			}
			say("image %s pushed", ref)
		}
	}
	objects, err := manifestsOf(ctx, options, f.manifestsArgs(ref, manifests), stderr)
	if err != nil {
		return err
	}
	if err := cluster.Apply(ctx, objects, f.force, f.dryRun); err != nil || f.dryRun || f.timeout == 0 {
		return err
	}
	return cluster.Wait(ctx, objects, f.timeout)
}

func (f *deployFlags) manifestsArgs(ref string, more []string) []string {
	args := []string{"manifests", "--format=json", "--image=" + ref}
	if f.name != "" {
		args = append(args, "--name="+f.name)
	}
	if f.namespace != "" {
		args = append(args, "--namespace="+f.namespace)
	}
	return append(args, more...)
}

// manifestsOf runs the server's verb manifests.
func manifestsOf(ctx context.Context, options image.Options, args []string, stderr io.Writer) ([]*unstructured.Unstructured, error) {
	var out bytes.Buffer
	if err := dev.Once(ctx, dev.Options{Dir: options.Dir, Package: options.Package, Args: args, Stdout: &out, Stderr: stderr}); err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("deploy: read the output of the server's verb manifests: %w", err)
	}
	objects := make([]*unstructured.Unstructured, len(list.Items))
	for i, item := range list.Items {
		objects[i] = &unstructured.Unstructured{Object: item}
	}
	return objects, nil
}

func newUninstall() *cobra.Command {
	var flags clusterFlags
	var name, namespace string
	var deleteData, dryRun bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall --name NAME [--namespace NAMESPACE]",
		Short: "Remove a server from a cluster",
		Long: `Deletes the objects that annex deploy or a server's verb manifests created in a cluster, selected
by their labels. The verb deletes APIServices first: while an APIService points to a missing
server, the cluster cannot delete any namespace.

The volumes with the stored objects, and their namespace, are kept unless you set --delete-data.
Objects in an etcd of your own are always kept.`,
		Example: `  annex uninstall --name demo
  annex uninstall --name demo --namespace demos --delete-data
  annex uninstall --name demo --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return usageError{errors.New("uninstall: --name is missing: set it to the name of the server in the cluster")}
			}
			if namespace == "" {
				namespace = name
			}
			for _, label := range []struct{ flag, value string }{{"name", name}, {"namespace", namespace}} {
				if mistakes := validation.IsDNS1123Label(label.value); len(mistakes) > 0 {
					return usageError{fmt.Errorf("uninstall: --%s %q: %s", label.flag, label.value, mistakes[0])}
				}
			}
			config, err := flags.config()
			if err != nil {
				return err
			}
			cluster, err := deploy.New(config, sayTo(cmd.OutOrStdout()))
			if err != nil {
				return err
			}
			return cluster.Uninstall(cmd.Context(), name, namespace, deleteData, dryRun, timeout)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the server in the cluster; required")
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of the server (default: its name)")
	cmd.Flags().BoolVar(&deleteData, "delete-data", false, "also delete the volumes, and the namespace if manifests created it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the objects that the verb would delete, and delete nothing")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "time to wait for the deletion of the APIServices")
	return cmd
}
