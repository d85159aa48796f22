package plugin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"
)

// kindOutput is the output of list for a kind.
type kindOutput struct {
	Group      string       `json:"group"`
	Version    string       `json:"version"`
	Kind       string       `json:"kind"`
	Resource   string       `json:"resource"`
	ShortNames []string     `json:"shortNames,omitempty"`
	Namespaced bool         `json:"namespaced"`
	Verbs      []verbOutput `json:"verbs"`
}

// verbOutput is a verb of a kind.
type verbOutput struct {
	Verb        string `json:"verb"`
	Subresource string `json:"subresource"`
	// Type is action or view, or the verb itself for built-in verbs.
	Type string `json:"type"`
	// Kind is the kind of the body or of the options, APIVersion its version.
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
}

// newList returns the command that runs without a verb.
func (p *plugin) newList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   p.program() + " [KIND]",
		Short: "Call subresources of the kinds of a server",
		Long: `Without a verb, the plugin lists the kinds and their verbs, which are their subresources in discovery.
Verbs that are not below are actions and views of the kinds: ` + p.called() + ` KIND VERB --help describes them.

Like kubectl, the plugin uses the server of the kubeconfig's current context. Write objects as KIND/NAME or KIND NAME,
after or before the verb.`,
		Example: `  ` + p.called() + `
  ` + p.called() + ` logs runner/x -f
  ` + p.called() + ` jenkinsservice/x approval --decision=Approved`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error {
			if output != "" && output != "json" && output != "table" {
				return misuse("--output %q: use table or json", output)
			}
			return p.list(words, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.SetUsageTemplate(usageOfRoot)
	return cmd
}

func (p *plugin) list(words []string, output string) error {
	p.server.refresh() // the current state, not the cached one
	all, err := p.server.resources()
	if err != nil {
		return err
	}
	kinds := []kindOutput{}
	only, _, _ := strings.Cut(strings.Join(words, ""), "/")
	for _, r := range all {
		if only != "" && !r.isCalled(only) {
			continue
		}
		if len(r.can()) > 0 {
			kinds = append(kinds, r.offers())
		}
	}
	if p.server.missing != nil {
		fmt.Fprintf(p.ErrOut, "warning: %v\n", p.server.missing)
	}
	if output == "json" {
		text, err := json.MarshalIndent(map[string]any{"kinds": kinds}, "", "  ")
		if err != nil {
			return fmt.Errorf("print the kinds: %w", err)
		}
		_, err = fmt.Fprintln(p.Out, string(text))
		return err
	}
	if len(kinds) == 0 {
		switch {
		case only != "":
			fmt.Fprintf(p.ErrOut, "%s have no subresources that the plugin supports.\n", only)
		default:
			fmt.Fprintln(p.ErrOut, "No kind of the server has logs, exec, attach, port-forward, an action or a view.")
		}
		return nil
	}
	table := printers.GetNewTabWriter(p.Out)
	fmt.Fprintln(table, "RESOURCE\tKIND\tVERBS")
	for _, k := range kinds {
		var verbs []string
		for _, v := range k.Verbs {
			verbs = append(verbs, v.Verb)
		}
		name := k.Resource
		if k.Group != "" {
			name += "." + k.Group
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, k.Kind, strings.Join(verbs, ","))
	}
	return table.Flush()
}

// offers returns the output of list for the resource.
func (r resource) offers() kindOutput {
	k := kindOutput{Group: r.Group, Version: r.Version, Kind: r.kind, Resource: r.Resource, ShortNames: r.shortNames, Namespaced: r.namespaced}
	for _, verb := range r.can() {
		wanted := role(verb)
		if verb == "cp" {
			wanted = roleExec
		}
		sub := r.with(wanted)
		if sub == nil {
			sub = r.named(verb)
		}
		kind := string(sub.role)
		if verb == "cp" {
			kind = verb
		}
		if slices.ContainsFunc(k.Verbs, func(v verbOutput) bool { return v.Verb == verb }) {
			sub, kind = r.named(verb), string(r.named(verb).role)
		}
		k.Verbs = append(k.Verbs, verbOutput{verb, sub.name, kind, sub.kind.Kind, sub.kind.GroupVersion().String()})
	}
	return k
}
