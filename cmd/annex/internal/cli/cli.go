// Package cli is the command line of annex: its verbs, their flags, and their output.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// errReported is a failure that the verb has already reported to the user.
var errReported = errors.New("reported")

// exitCode is the exit code of a verb that has already reported its failure.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Module is the go.mod and go.sum of the tool itself.
type Module = generate.Module

// Main runs the command line and returns the exit code: 0, 1 for a failure, 2 for a mistake in the command line
// itself.
func Main(module Module, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	root := newRoot(module)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }

	verb, err := root.ExecuteContextC(ctx)
	var usage usageError
	var ended exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return int(ended)
	case errors.Is(err, errReported):
		return exitFailure
	case !started || errors.As(err, &usage):
		if meant := olderWords(args); meant != "" {
			err = fmt.Errorf("%w: here it is annex %s", err, meant)
		} else if hint := olderFlag(verb, err); hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		fmt.Fprintf(stderr, "annex: %v\nSee %s --help.\n", err, verb.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "annex: %v\n", err)
	return exitFailure
}

// olderWords returns the verb for a verb of apiserver-builder or kubebuilder, and nothing for other words.
func olderWords(args []string) string {
	const createAPI = "create api --group GROUP --version VERSION --kind KIND"
	for _, w := range []struct{ said, meant string }{
		{"create group", createAPI},
		{"create resource", createAPI},
		{"create kind", createAPI},
		{"create webhook", "create admission --kind KIND"},
		{"init repo", "init --domain DOMAIN"},
		{"init project", "init --domain DOMAIN"},
		{"run local", "run"},
		{"run in-cluster", "run --in-cluster --image IMAGE"},
		{"build generated", "generate"},
		{"build container", "image"},
		{"build executables", "image, or go build"},
		{"build", "image, or go build"},
	} {
		words := strings.Fields(w.said)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return w.meant
		}
	}
	return ""
}

// olderFlag returns a hint for an unknown flag of apiserver-builder or kubebuilder, and nothing for other errors.
func olderFlag(verb *cobra.Command, err error) string {
	unknown := (*pflag.NotExistError)(nil)
	if !errors.As(err, &unknown) {
		return ""
	}
	const nothing = "leave it out"
	return map[string]map[string]string{
		"annex create api": {
			"non-namespaced":        "here it is --namespaced, with the opposite value: a cluster-scoped kind has --namespaced=false",
			"skip-admission-prompt": "annex asks nothing, so " + nothing,
			"controller":            "add the controller afterwards, by annex create controller",
			"short-name":            "add ShortNames to the kind in the definition of the server",
			"plural":                "here it is --resource",
			"make":                  "annex create api generates the code, so " + nothing,
			"resource-pattern":      nothing,
		},
		"annex init": {
			"install-deps":          "go.mod and the module cache have the libraries, so " + nothing,
			"plugins":               nothing,
			"project-name":          "here it is --name",
			"project-version":       nothing,
			"owner":                 nothing,
			"license":               nothing,
			"copyright":             nothing,
			"multigroup":            "a project may have several groups, so " + nothing,
			"fetch-deps":            "the go command fetches modules, so " + nothing,
			"skip-go-version-check": nothing,
		},
		"annex run": {
			"etcd":       "annex run needs no etcd, so " + nothing + "; after --, serve takes --etcd-servers",
			"apiserver":  "annex run builds and starts the project's program, so " + nothing,
			"controller": "controllers run in the server, so " + nothing,
		},
	}[verb.CommandPath()][unknown.GetSpecifiedName()]
}

// usageError is a mistake in the command line that flag parsing cannot detect.
type usageError struct{ error }

func newRoot(module Module) *cobra.Command {
	root := &cobra.Command{
		Use:           "annex",
		Short:         "The tool for servers made with Annex",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.AddCommand(newServer()...)
	root.AddCommand(
		newCreate(module),
		newDeploy(),
		newDescribe(),
		newDoctor(),
		newEnvtest(),
		newExport(),
		newGenerate(module),
		newImage(),
		newImport(module),
		newInit(module),
		newLint(),
		newRequire(module),
		newRun(module),
		newUninstall(),
		newVersion(),
		newWorker(),
	)
	completeValues(root)
	return root
}
