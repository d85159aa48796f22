package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/cmd/annex/internal/dev"
	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

func newRun(module Module) *cobra.Command {
	var deploy deployFlags
	inCluster := false
	cmd := &cobra.Command{
		Use:   "run [PACKAGE] [-- FLAG...]",
		Short: "Build and run a project's server, and restart it after each change",
		Long: `Builds the project's server and runs its verb serve in the project's folder, with the flags after
--. When a Go file or go.mod changes, the verb builds the server again and restarts it with the
same data; when an API package changes, it generates code first. If the build fails, the verb
prints the errors, and the previous server keeps running.

PACKAGE is the server's main package; the default is the package beside go.mod. The verb does not
watch packages of other modules that go.mod replaces by folders. The server listens only on this
machine. An interrupt ends both.

With --in-cluster, the server runs in a cluster instead: the verb runs annex deploy again after
each change, and passes the flags after -- to the server's verb manifests. After an interrupt the
server keeps running in the cluster; remove it with annex uninstall.`,
		Example: `  annex run
  annex run --in-cluster --image registry.example.com/demo:dev
  annex run -- --secure-port 6443 --storage memory
  annex run ./cmd/server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.ArgsLenAtDash()
			if at < 0 {
				at = len(args)
			}
			flags := args[at:]
			if meant := olderWords(append([]string{"run"}, args[:at]...)); meant != "" && at == 1 {
				return usageError{fmt.Errorf("run: %s is not a package", args[0])}
			}
			if !inCluster {
				if err := noDeploy(cmd); err != nil {
					return usageError{fmt.Errorf("run: %w", err)}
				}
				if err := staysHere(flags); err != nil {
					return usageError{fmt.Errorf("run: %w", err)}
				}
			}
			p, err := findServerModule(cmd.Context(), args[:at])
			if err != nil {
				return fmt.Errorf("run: %w", err)
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("run: %w", err)
			}
			options := dev.Options{
				Dir: p.dir, Package: p.main, Args: flags,
				Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
				Generate: func(ctx context.Context, dirs []string) error {
					for i, dir := range dirs {
						dirs[i] = "." + string(filepath.Separator) + dir
					}
					_, err := generate.Run(ctx, generate.Options{Dir: p.dir, Args: dirs, Module: module, Worker: []string{self, workerVerb}})
					return err
				},
			}
			if inCluster {
				if err := deploy.check(cmd.Context(), args[:at]); err != nil {
					return err
				}
				options.Deploy = func(ctx context.Context) error {
					return deploy.deploy(ctx, args[:at], flags, cmd.OutOrStdout(), cmd.ErrOrStderr())
				}
			}
			return dev.Run(cmd.Context(), options)
		},
	}
	cmd.Flags().BoolVar(&inCluster, "in-cluster", false, "deploy the server into a cluster instead, and again after each change")
	deploy.add(cmd)
	return cmd
}

// noDeploy refuses flags that need --in-cluster.
func noDeploy(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "in-cluster" && err == nil {
			err = fmt.Errorf("--%s is for --in-cluster", f.Name)
		}
	})
	return err
}

// staysHere refuses addresses that are not loopback: a server under development must not serve others.
func staysHere(flags []string) error {
	for i, flag := range flags {
		address, ok := strings.CutPrefix(flag, "--bind-address=")
		if flag == "--bind-address" && i+1 < len(flags) {
			address, ok = flags[i+1], true
		}
		if ip := net.ParseIP(address); ok && ip != nil && !ip.IsLoopback() {
			return fmt.Errorf("--bind-address %s is reachable from other machines, which annex run does not support: build the server and "+
				"use its verb serve", address)
		}
	}
	return nil
}

func newDescribe() *cobra.Command {
	return &cobra.Command{
		Use:   "describe [PACKAGE] [-- FLAG...]",
		Short: "Print the features of a project's server",
		Long: `Builds the project's server and runs its verb describe with the flags after --: it prints the
kinds with their versions, verbs, subresources and columns, and the controllers.

PACKAGE is the server's main package; the default is the package beside go.mod.`,
		Example: `  annex describe
  annex describe -- -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.ArgsLenAtDash()
			if at < 0 {
				at = len(args)
			}
			p, err := findServerModule(cmd.Context(), args[:at])
			if err != nil {
				return fmt.Errorf("describe: %w", err)
			}
			err = dev.Once(cmd.Context(), dev.Options{
				Dir: p.dir, Package: p.main, Args: append([]string{"describe"}, args[at:]...),
				Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
			})
			if err != nil {
				return fmt.Errorf("describe: %w", err)
			}
			return nil
		},
	}
}

// serverModule is a Go module with a server in it.
type serverModule struct {
	dir  string // its folder
	main string // import path of the main package
}

// findServerModule finds the project that contains the current folder, and its server.
func findServerModule(ctx context.Context, args []string) (serverModule, error) {
	main := ""
	switch len(args) {
	case 0:
	case 1:
		main = args[0]
	default:
		return serverModule{}, usageError{fmt.Errorf("unexpected argument %q: pass one package, and flags of the server after --", args[1])}
	}
	found, err := dev.FindPackage(ctx, main)
	if err != nil {
		return serverModule{}, err
	}
	if found.Module == "" {
		return serverModule{}, errors.New("no go.mod in this folder or above: change into a project, or create one with annex init")
	}
	if found.Name != "main" {
		return serverModule{}, fmt.Errorf(
			"%s is package %s, not a main package: pass the main package of the server, such as ./cmd/server",
			found.Path,
			found.Name,
		)
	}
	return serverModule{found.Module, found.Path}, nil
}
