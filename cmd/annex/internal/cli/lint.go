package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/lint"
)

func newLint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lint",
		Short: "Check API packages and hooks for mistakes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLintAPI(), newLintHooks())
	return cmd
}

func newLintAPI() *cobra.Command {
	var output, against string
	cmd := &cobra.Command{
		Use:   "api [PATTERN...]",
		Short: "Find breaking changes in API packages since an earlier commit",
		Long: `Compares the Go API packages with those of an earlier commit and reports each change that breaks
clients or stored objects: a field, kind or version that is removed, renamed or has another type,
stricter validation, another default or list type, an optional field that became required, a
changed protobuf number. Without --against it compares with the commit at which this branch left
the main branch, and on the main branch with the last commit. It changes nothing, and needs no
network.

The exit code is 1 if a change breaks something. In alpha versions, which have no compatibility
guarantees, changes are notes only, unless the server could not read stored objects, or would
read them wrongly.

To accept an intended change, add it to a file ` + lint.AcceptFile + ` beside go.mod, with a
reason, in a line like this:

  field-removed: shop.example.com/v1 Widget .spec.size # was never released`,
		Example: `  annex lint api
  annex lint api --against v1.2.0 ./apis/...
  annex lint api --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: use text or json", output)}
			}
			result, err := lint.Run(cmd.Context(), lint.Options{Patterns: args, Against: against})
			if err != nil {
				return fmt.Errorf("lint api: %w", err)
			}
			if output == "json" {
				return lintJSON(cmd.OutOrStdout(), result)
			}
			return lintText(cmd.OutOrStdout(), cmd.ErrOrStderr(), result)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	cmd.Flags().StringVar(&against, "against", "", "git commit, branch or tag to compare with")
	return cmd
}

func newLintHooks() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "hooks [PATTERN...]",
		Short: "Find plain errors of hooks and actions, which clients get as server faults",
		Long: `Finds functions of a server's definition that return errors.New or fmt.Errorf without %w, and
reports the status code that clients get: 500 from an action, a view, a connection or an
operation, 503 or 500 from a source, and 403 from an admission hook. Errors of annex.Invalid,
Forbidden, NotFound, Conflict, TooManyRequests and Unavailable have the same code in all
functions.

The verb only parses files, so it finds function literals and functions declared in the same
package. The exit code is 1 if clients get an error as a fault of the server; errors of
admission hooks, which reject the request as intended, are notes.`,
		Example: `  annex lint hooks
  annex lint hooks ./cmd/... --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: use text or json", output)}
			}
			findings, err := lint.Hooks(cmd.Context(), lint.Options{Patterns: args})
			if err != nil {
				return fmt.Errorf("lint hooks: %w", err)
			}
			return reportHooks(cmd.OutOrStdout(), cmd.ErrOrStderr(), findings, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result: text or json")
	return cmd
}

func reportHooks(stdout, stderr io.Writer, findings []lint.Finding, output string) error {
	faults := breaking(lint.Result{Findings: findings})
	if output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(map[string]any{"findings": append([]lint.Finding{}, findings...)}); err != nil {
			return fmt.Errorf("lint hooks: %w", err)
		}
	} else {
		for _, f := range findings {
			fmt.Fprintln(stdout, f)
		}
		if faults > 0 {
			fmt.Fprintf(
				stderr,
				"clients get %d of %d plain errors as faults of the server: return errors of package annex\n",
				faults,
				len(findings),
			)
		}
	}
	if faults > 0 {
		return errReported
	}
	return nil
}

func lintJSON(w io.Writer, result lint.Result) error {
	if result.Findings == nil {
		result.Findings = []lint.Finding{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(result); err != nil {
		return fmt.Errorf("lint api: %w", err)
	}
	if breaking(result) > 0 {
		return errReported
	}
	return nil
}

func lintText(stdout, stderr io.Writer, result lint.Result) error {
	for _, f := range result.Findings {
		fmt.Fprintln(stdout, f)
	}
	for _, line := range result.Stale {
		fmt.Fprintf(stderr, "note: %s: the line matches no change any more: remove it\n", line)
	}
	if n := breaking(result); n > 0 {
		fmt.Fprintf(stderr, "compared with %.12s, %d %s: revert them, or accept them in %s\n", result.Against, n, changes(n), lint.AcceptFile)
		return errReported
	}
	fmt.Fprintf(stderr, "compared with %.12s, no change breaks compatibility\n", result.Against)
	return nil
}

func breaking(result lint.Result) int {
	n := 0
	for _, f := range result.Findings {
		if f.Breaks() {
			n++
		}
	}
	return n
}

func changes(n int) string {
	if n == 1 {
		return "change breaks compatibility"
	}
	return "changes break compatibility"
}

// lintAfterCheck runs lint after generate --check. Outside a git repository, such as in a release's source, there is
// nothing to compare with.
func lintAfterCheck(ctx context.Context, stderr io.Writer, args []string) error {
	result, err := lint.Run(ctx, lint.Options{Patterns: args})
	if errors.Is(err, lint.ErrNoRepository) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lint api: %w", err)
	}
	if breaking(result) == 0 {
		return nil
	}
	return lintText(stderr, stderr, result)
}
