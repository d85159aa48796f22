package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	clientexec "k8s.io/client-go/util/exec"

	"github.com/annexapi/annex/internal/base/typo"
)

// Exit codes. A command that exec runs may end with the same codes.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as of a shell's command after Ctrl-C
)

// Options configure a plugin.
type Options struct {
	// Name is the plugin's name after kubectl: "wardle" for the program kubectl-wardle. The default is annex.
	Name string
	// Groups are the API groups that the plugin uses; *.example.com stands for all groups below that domain. The
	// default is all groups of the server.
	Groups []string
}

// IOStreams are the input and outputs of a plugin.
type IOStreams = genericiooptions.IOStreams

// Main runs the command line of the process and exits: with 0, with 1 for a failure, 2 for a mistake in the command
// line itself, 130 after an interrupt, or the exit code of the command that exec ran.
//
// If the program is called kubectl_complete-NAME, for example by a link to it, Main completes the words that follow,
// which is how kubectl completes plugins.
func Main(o Options) {
	args := os.Args[1:]
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl_complete-") {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, o, args, IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}

// Run runs one command line, and returns the exit code that Main would exit with. The command ends when ctx ends.
// While a command has the terminal in raw mode, it handles signals itself.
func Run(ctx context.Context, o Options, args []string, streams IOStreams) int {
	p := newPlugin(o, streams)
	root := p.root()
	args, err := p.resolve(ctx, root, args)
	ran := false
	if err == nil {
		root.SetArgs(args)
		root.PersistentPreRun = func(*cobra.Command, []string) { ran = true }
		_, err = root.ExecuteContextC(ctx)
	}
	var usage usageError
	var exited clientexec.CodeExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exited):
		fmt.Fprintln(streams.ErrOut, exited)
		return exited.Code
	case errors.Is(err, errReported):
		return exitFailure
	case errors.As(err, &usage), !ran && !errors.Is(err, errServer):
		fmt.Fprintf(streams.ErrOut, "error: %s\nSee %s --help.\n", printable(err.Error()), p.called())
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	if apierrors.ReasonForError(err) != "" {
		fmt.Fprintf(streams.ErrOut, "error from server (%s): %s\n", printable(string(apierrors.ReasonForError(err))), printable(err.Error()))
	} else {
		fmt.Fprintf(streams.ErrOut, "error: %s\n", printable(err.Error()))
	}
	return exitFailure
}

// errReported is a failure that the verb has already reported.
var errReported = errors.New("reported")

// errServer is a failure to read the server's discovery.
var errServer = errors.New("cannot read the resources of the server")

// usageError is a mistake in the command line.
type usageError struct{ error }

func misuse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// plugin is one run of the command line.
type plugin struct {
	Options
	IOStreams
	config *genericclioptions.ConfigFlags
	server *server
}

func newPlugin(o Options, streams IOStreams) *plugin {
	if o.Name == "" {
		o.Name = "annex"
	}
	p := &plugin{Options: o, IOStreams: streams}
	p.config = p.newConfig()
	p.server = &server{config: p.config, groups: o.Groups}
	return p
}

func (p *plugin) newConfig() *genericclioptions.ConfigFlags {
	warnings := rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	config := genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	config.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.WarningHandler = warnings
		return c
	}
	return config
}

// program returns the name of the program, called the command that users type.
func (p *plugin) program() string { return "kubectl-" + p.Name }
func (p *plugin) called() string  { return "kubectl " + p.Name }

func (p *plugin) root() *cobra.Command {
	root := p.newList()
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: p.called()}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.ErrOut)
	p.config.AddFlags(root.PersistentFlags())
	cache := root.PersistentFlags().Lookup("cache-dir")
	cache.DefValue, cache.Usage = "", "Cache directory of discovery, shared with kubectl (default: $HOME/.kube/cache)"
	root.SetFlagErrorFunc(explainFlag)
	root.AddCommand(
		p.newAttach(),
		p.newCall(),
		p.newCopy(),
		p.newDeleted(),
		p.newDiff(),
		p.newExec(),
		p.newGet(),
		p.newHistory(),
		p.newLogs(),
		p.newPortForward(),
		p.newRestore(),
		p.newUndo(),
		p.newWait(),
	)
	root.ValidArgsFunction = p.completeVerb
	p.completeFlags(root)
	return root
}

// explainFlag adds a suggestion to the error about an unknown flag.
func explainFlag(cmd *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return usageError{err}
	}
	var known []string
	add := func(f *pflag.Flag) { known = append(known, f.Name) }
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if nearest := typo.Nearest(missing.GetSpecifiedName(), known); nearest != "" {
		return misuse("%w: did you mean --%s?", err, nearest)
	}
	return usageError{err}
}
