package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	kubectlexec "k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/util/term"
)

type execFlags struct {
	container         string
	stdin, tty, quiet bool
}

func (f *execFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.container, "container", "c", "", "container, for objects with several containers")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "with --stdin: allocate a terminal, with the size of the local one")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only output of the remote command")
}

func (p *plugin) newExec() *cobra.Command {
	var given execFlags
	cmd := &cobra.Command{
		Use:   "exec KIND/NAME -- COMMAND [ARGUMENT...]",
		Short: "Run a command in an object",
		Long:  `Runs a command in an object. The exit code of the plugin is that of the command. The command begins after --.`,
		Example: `  ` + p.called() + ` exec runner/x -- ls -l
  ` + p.called() + ` exec runner/x -it -- sh`,
		ValidArgsFunction: p.completeObjects(hasRole(roleExec)),
		RunE: func(cmd *cobra.Command, words []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0 && len(words) > 1:
				return misuse("-- is missing: use exec KIND/NAME -- COMMAND")
			case dash < 0 || dash == len(words):
				return misuse("no command: use exec KIND/NAME -- COMMAND")
			}
			o, err := p.object(words[:dash], string(roleExec), hasRole(roleExec))
			if err != nil {
				return err
			}
			return p.stream(cmd.Context(), o, roleExec, words[dash:], given)
		},
	}
	given.add(cmd)
	return cmd
}

func (p *plugin) newAttach() *cobra.Command {
	var given execFlags
	cmd := &cobra.Command{
		Use:   "attach KIND/NAME",
		Short: "Attach to a running process in an object",
		Example: `  ` + p.called() + ` attach runner/x
  ` + p.called() + ` attach runner/x -it`,
		ValidArgsFunction: p.completeObjects(hasRole(roleAttach)),
		RunE: func(cmd *cobra.Command, words []string) error {
			o, err := p.object(words, string(roleAttach), hasRole(roleAttach))
			if err != nil {
				return err
			}
			return p.stream(cmd.Context(), o, roleAttach, nil, given)
		},
	}
	given.add(cmd)
	return cmd
}

// stream connects the plugin's streams to an object's subresource.
func (p *plugin) stream(ctx context.Context, o object, wanted role, command []string, given execFlags) error {
	if given.tty && !given.stdin {
		return misuse("--tty requires --stdin")
	}
	if err := p.isThere(ctx, o); err != nil {
		return err
	}
	streams := kubectlexec.StreamOptions{Stdin: given.stdin, TTY: given.tty, Quiet: given.quiet, IOStreams: p.IOStreams}
	terminal := streams.SetupTTY()
	var sizes remotecommand.TerminalSizeQueue
	if terminal.Raw {
		if queue := terminal.MonitorSize(terminal.GetSize()); queue != nil {
			sizes = terminalSizes{queue}
		}
		streams.ErrOut = nil // all output comes over standard output then
		if wanted == roleAttach && !given.quiet {
			fmt.Fprintln(p.ErrOut, "If you don't see a command prompt, try pressing enter.")
		}
	}
	return terminal.Safe(func() error {
		return p.execute(ctx, o, wanted, command, given.container, terminal.Raw, sizes, streams.In, streams.Out, streams.ErrOut)
	})
}

// execute runs a command in an object, or attaches to it, with these streams, which may be nil.
func (p *plugin) execute(
	ctx context.Context,
	o object,
	wanted role,
	command []string,
	container string,
	tty bool,
	sizes remotecommand.TerminalSizeQueue,
	in io.Reader,
	out, errOut io.Writer,
) error {
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := p.server.client()
	if err != nil {
		return err
	}
	request := client.Post().AbsPath(o.path(o.with(wanted).name)...)
	// All four parameters are sent, since output may be on by default.
	for name, is := range map[string]bool{"stdin": in != nil, "stdout": out != nil, "stderr": errOut != nil, "tty": tty} {
		request.Param(name, strconv.FormatBool(is))
	}
	if container != "" {
		request.Param("container", container)
	}
	for _, word := range command {
		request.Param("command", word)
	}
	executor := new(kubectlexec.DefaultRemoteExecutor)
	return explain(executor.ExecuteWithContext(ctx, request.URL(), config, in, out, errOut, tty, sizes), o, request.URL())
}

// isThere returns an error if an object does not exist. An object that the user may not read may exist.
func (p *plugin) isThere(ctx context.Context, o object) error {
	if _, err := p.server.get(ctx, o); err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// explain adds the object to the error of a failed connection, unless the error is the server's own.
func explain(err error, o object, at *url.URL) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) || !strings.Contains(err.Error(), "upgrade") {
		return err
	}
	return fmt.Errorf("connect to %s at %s: %w", o, at.Path, err)
}

// terminalSizes adapts the sizes of kubectl's terminal to client-go's executor.
type terminalSizes struct{ queue term.TerminalSizeQueue }

func (s terminalSizes) Next() *remotecommand.TerminalSize {
	size := s.queue.Next()
	if size == nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
}
