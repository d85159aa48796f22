package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/doctor"
)

func newDoctor() *cobra.Command {
	var options doctor.Options
	var fix fixFlags
	var output string
	cmd := &cobra.Command{
		Use:   "doctor [APISERVICE | GROUP/VERSION | GROUP ...]",
		Short: "Diagnose why an aggregated API server is not available",
		Long: `Checks each link of the chain between kube-apiserver and an aggregated API server, made with Annex
or not: APIService, Service, endpoints, connection, certificate, front proxy, permissions of the
server's service account, discovery, watches, OpenAPI. It prints a line for each link, and the
evidence and the repair of the first broken link. Without arguments it checks all APIServices
with a Service.

The verb reads objects through the cluster's API server, with the permissions of the kubeconfig's
user, and reports links that it cannot check. If this machine can reach the server's address, the
verb reads the certificate there, and sends no request. It changes nothing without --fix, which
creates missing bindings to the roles extension-apiserver-authentication-reader and
system:auth-delegator, after a confirmation.

The exit code is 1 if a link is broken or the cluster does not answer.`,
		Example: `  annex doctor
  annex doctor v1alpha1.wardle.example.com
  annex doctor metrics.k8s.io/v1beta1 --all --output json
  annex doctor wardle.example.com --fix --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			options.Names = args
			if err := checkDoctor(options, fix, output); err != nil {
				return usageError{fmt.Errorf("doctor: %w", err)}
			}
			options.All = options.All || fix.enabled
			diagnoses, err := doctor.Examine(cmd.Context(), options)
			if err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
			if fix.enabled {
				if diagnoses, err = fix.run(cmd, options, diagnoses); err != nil {
					return fmt.Errorf("doctor: %w", err)
				}
			}
			return printDiagnoses(cmd.OutOrStdout(), diagnoses, options, output)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, or ~/.kube/config)")
	flags.StringVar(&options.Context, "context", "", "context in the kubeconfig (default: its current one)")
	flags.BoolVar(&options.All, "all", false, "check the other links after the first broken one")
	flags.DurationVar(
		&options.Slow,
		"slow",
		100*time.Millisecond,
		"maximum time for the list of resources, without the round trip to the cluster; the verb takes the median of five requests",
	)
	flags.DurationVar(&options.Patience, "timeout", 10*time.Second, "timeout of each request, and of the wait for the end of a list")
	flags.StringVar(&options.ServiceAccount, "service-account", "", "NAMESPACE/NAME of the server's service account, for a server outside "+
		"the cluster (default: that of the Service's pods)")
	flags.BoolVar(&fix.enabled, "fix", false, "create missing bindings to auth-reader and auth-delegator, after a confirmation; then "+
		"check again")
	flags.BoolVar(&fix.yes, "yes", false, "with --fix: do not ask")
	flags.BoolVar(&fix.dryRun, "dry-run", false, "with --fix: print the bindings, and send them to the cluster as a dry run")
	flags.StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	return cmd
}

func checkDoctor(options doctor.Options, fix fixFlags, output string) error {
	for _, name := range options.Names {
		if err := doctor.CheckName(name); err != nil {
			return err
		}
	}
	namespace, name, both := strings.Cut(options.ServiceAccount, "/")
	switch {
	case output != "text" && output != "json":
		return fmt.Errorf("--output %q: use text or json", output)
	case options.ServiceAccount != "" && (!both || namespace == "" || name == "" || strings.Contains(name, "/")):
		return fmt.Errorf("--service-account %q: use NAMESPACE/NAME", options.ServiceAccount)
	case options.Slow <= 0:
		return fmt.Errorf("--slow %s: the duration must be greater than zero", options.Slow)
	case options.Patience <= 0:
		return fmt.Errorf("--timeout %s: the duration must be greater than zero", options.Patience)
	case !fix.enabled && (fix.yes || fix.dryRun):
		return errors.New("--yes and --dry-run require --fix")
	}
	return nil
}

// printDiagnoses prints the diagnoses. It returns an error if any is broken.
func printDiagnoses(w io.Writer, diagnoses []doctor.Diagnosis, options doctor.Options, output string) error {
	broken := 0
	for i := range diagnoses {
		if diagnoses[i].First() != nil {
			broken++
		}
	}
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if diagnoses == nil {
			diagnoses = []doctor.Diagnosis{}
		}
		if err := e.Encode(map[string]any{"apiServices": diagnoses, "broken": broken}); err != nil {
			return fmt.Errorf("doctor: %w", err)
		}
	} else {
		for i := range diagnoses {
			diagnoses[i].Print(w, options.All)
			fmt.Fprintln(w)
		}
		switch {
		case len(diagnoses) == 0:
			fmt.Fprintln(w, "No APIService has a Service: the cluster has no aggregated API servers.")
		default:
			fmt.Fprintf(w, "%d of %d broken.\n", broken, len(diagnoses))
		}
	}
	if broken > 0 {
		return errReported
	}
	return nil
}

// fixFlags holds the flags of --fix.
type fixFlags struct{ enabled, yes, dryRun bool }

// run makes the permitted repairs and returns the diagnoses afterwards. It reports on the error output, since the
// result goes to the standard output.
func (f fixFlags) run(cmd *cobra.Command, options doctor.Options, diagnoses []doctor.Diagnosis) ([]doctor.Diagnosis, error) {
	repairs := doctor.Repairs(diagnoses)
	if len(repairs) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "--fix found nothing to repair")
		return diagnoses, nil
	}
	answers := bufio.NewReader(cmd.InOrStdin())
	var done []doctor.Repair
	for _, r := range repairs {
		agreed, err := f.apply(cmd.Context(), options, r, answers, cmd.ErrOrStderr())
		if err != nil {
			return nil, err
		}
		if agreed {
			done = append(done, r)
		}
	}
	if f.dryRun || len(done) == 0 {
		return diagnoses, nil
	}
	return doctor.ExamineRepaired(cmd.Context(), options, done)
}

func (f fixFlags) apply(ctx context.Context, options doctor.Options, r doctor.Repair, answers *bufio.Reader, w io.Writer) (bool, error) {
	if f.dryRun {
		if err := r.Apply(ctx, options, true); err != nil {
			return false, err
		}
		fmt.Fprintf(w, "would create:\n%s", r.YAML())
		return true, nil
	}
	if !f.yes {
		fmt.Fprintf(w, "%sCreate it? [y/N] ", r.YAML())
		line, err := answers.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
			fmt.Fprintln(w, "left as it is")
			return false, nil
		}
	}
	if err := r.Apply(ctx, options, false); err != nil {
		return false, err
	}
	fmt.Fprintf(w, "done: %s\n", r.Command)
	return true, nil
}
