package cli

import (
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

// completeValues registers completions for the values of flags, by the flags' names, which mean the same in all
// verbs. Values that cannot be determined have no completion.
func completeValues(cmd *cobra.Command) {
	for name, values := range map[string]cobra.CompletionFunc{
		"output":     cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp),
		"group":      completeGroup,
		"kind":       completeKind,
		"against":    completeCommit,
		"version":    noCompletion,
		"name":       noCompletion,
		"resource":   noCompletion,
		"clients":    completeFolder,
		"replace":    completeFolder,
		"output-dir": completeFolder,
	} {
		if cmd.LocalFlags().Lookup(name) == nil {
			continue
		}
		// The call fails for a missing flag, and for a flag with a completion.
		_ = cmd.RegisterFlagCompletionFunc(name, values)
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

func noCompletion(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func completeFolder(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func completeGroup(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var groups []string
	for _, k := range scaffold.Kinds("") {
		groups = append(groups, k.Group)
	}
	slices.Sort(groups)
	return slices.Compact(groups), cobra.ShellCompDirectiveNoFileComp
}

// completeKind offers the existing kinds, of the group if one is given. A verb that creates a kind gets none.
func completeKind(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if cmd.Flags().Lookup("resource") != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	group, _ := cmd.Flags().GetString("group")
	var kinds []string
	for _, k := range scaffold.Kinds("") {
		if group == "" || k.Group == group || strings.HasPrefix(k.Group, group+".") {
			kinds = append(kinds, k.Kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), cobra.ShellCompDirectiveNoFileComp
}

func completeCommit(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	out, err := exec.CommandContext(cmd.Context(), "git", "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags",
		"refs/remotes").
		Output()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return strings.Fields(string(out)), cobra.ShellCompDirectiveNoFileComp
}
