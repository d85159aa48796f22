// Package program turns a server that package annex defines into a program: a command line with the verbs serve,
// controllers, manifests, storage, user, token-key, kubeconfig, describe and version.
//
// Unlike package annex, it links the dependencies of a command line: cobra, and the storages embedded, files and etcd,
// from which the flag --storage chooses. A program that opens a server with annex.New in its own main function links
// only the storage that it imports.
package program

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/program/cli"
	"github.com/annexapi/annex/internal/program/definition"
)

// Main runs the verb on the command line and exits: with 0 if the verb succeeded, with 2 if the command line, the
// definition or the configuration is wrong, with 1 if the verb failed. SIGINT and SIGTERM shut a server down
// gracefully; a second signal ends the process at once, with 1. A main function is meant to call only Main. The storage
// is embedded in the data directory unless flags or the definition name another.
//
// Each extension modifies the command line before it is parsed: it adds flags to verbs, such as serve and controllers,
// or verbs to the root command. To alias an existing flag, forward Set of the new flag's pflag.Value to it.
func Main(server annex.Server, extensions ...func(root *cobra.Command)) {
	ctx, end := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		end()
		<-signals
		os.Exit(1)
	}()
	os.Exit(Run(ctx, server, os.Args[1:], os.Stdout, os.Stderr, extensions...))
}

// Run is Main for a program with further verbs, and for tests: it runs the verb args[0] and returns the exit code. The
// server shuts down gracefully when ctx ends. Run sets the Go runtime's memory limit to that of the machine or the
// container, unless GOMEMLIMIT is set. Unless GOGC is set, it makes garbage collections less frequent while the program
// is busy.
func Run(
	ctx context.Context, server annex.Server, args []string, stdout, stderr io.Writer, extensions ...func(root *cobra.Command),
) int {
	budget.SetSoftLimit()
	defer budget.SpareCollections()()
	return cli.Run(ctx, cli.Program{
		Name: server.Name,
		Define: func() (*definition.Definition, error) {
			defined, err := annex.Define(server)
			if err != nil {
				return nil, err
			}
			return definition.Of(defined), nil
		},
		Extensions: extensions,
	}, args, stdout, stderr)
}
