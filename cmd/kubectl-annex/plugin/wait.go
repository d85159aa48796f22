package plugin

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubectlwait "k8s.io/kubectl/pkg/cmd/wait"
)

func (p *plugin) newWait() *cobra.Command {
	given := kubectlwait.NewWaitFlags(p.config, p.IOStreams)
	cmd := &cobra.Command{
		Use:   "wait KIND/NAME [--for=CONDITION]",
		Short: "Wait for the end of an operation, or for a condition of any object",
		Long: `Waits for the end of an operation, and shows its progress. The exit code is 0 if the operation succeeded, and 1 if it
failed or was cancelled. Without --timeout, the verb waits without limit.

With --for the verb waits for objects of any kind, like kubectl wait: for a condition, a value, the creation or the
deletion.`,
		Example: `  ` + p.called() + ` wait operation/x
  ` + p.called() + ` wait runner/x --for=condition=Ready --timeout=60s
  ` + p.called() + ` wait runner/x --for=jsonpath='{.status.phase}'=Running`,
		ValidArgsFunction: p.completeObjects(watchable),
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(given.ForCondition) == 0 {
				return p.waitForEnd(cmd, words, given.Timeout)
			}
			options, err := given.ToOptions(words)
			if err != nil {
				return usageError{err}
			}
			return options.RunWaitContext(cmd.Context())
		},
	}
	given.AddFlags(cmd)
	return cmd
}

// waitForEnd waits for the end of an operation.
func (p *plugin) waitForEnd(cmd *cobra.Command, words []string, timeout time.Duration) error {
	is := func(r resource) bool { return r.kind == operationKind && watchable(r) }
	o, err := p.object(words, "operation", is)
	if err != nil {
		if all, _ := p.server.resources(); !slices.ContainsFunc(all, is) || len(words) > 0 && !isOperation(words[0], all, is) {
			return misuse("--for is missing: use --for=condition=NAME, --for=jsonpath='{PATH}'=VALUE, --for=create or --for=delete; only " +
				"for operations, --for is optional")
		}
		return err
	}
	if !cmd.Flags().Changed("timeout") || timeout < 0 {
		timeout = 0
	}
	text, err := p.server.get(cmd.Context(), o)
	if err != nil {
		return err
	}
	now := new(unstructured.Unstructured)
	if err := json.Unmarshal(text, &now.Object); err != nil {
		return err
	}
	ended, err := p.follow(cmd.Context(), o, now, timeout)
	if err != nil {
		return err
	}
	return outcome(p.ErrOut, o, ended)
}

// isOperation reports whether a word names a kind of operations.
func isOperation(word string, all []resource, is func(resource) bool) bool {
	kind, _, _ := strings.Cut(word, "/")
	return slices.ContainsFunc(all, func(r resource) bool { return is(r) && r.isCalled(kind) })
}
