package plugin

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
)

const silent = cobra.ShellCompDirectiveNoFileComp

// completeVerb completes the first word: an action, a view or a kind, in addition to cobra's verbs. It also completes
// the verb behind a kind.
func (p *plugin) completeVerb(_ *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
	all, err := p.server.resources()
	if err != nil {
		return nil, silent
	}
	var offers []string
	offer := func(word string) {
		if strings.HasPrefix(word, typed) && !slices.Contains(offers, word) {
			offers = append(offers, word)
		}
	}
	switch len(words) {
	case 0:
		for _, name := range callNames(all) {
			offer(name)
		}
		for _, r := range all {
			if len(r.can()) > 0 {
				offer(r.Resource)
			}
		}
	case 1:
		kind, _, _ := strings.Cut(words[0], "/")
		for _, r := range all {
			if r.isCalled(kind) {
				for _, verb := range r.can() {
					offer(verb)
				}
			}
		}
	}
	return offers, silent
}

// completeObjects completes the kinds that has accepts, and the names of their objects.
func (p *plugin) completeObjects(has func(resource) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
		kind, name, slash := strings.Cut(typed, "/")
		switch {
		case len(words) == 0 && slash:
			return p.names(cmd, has, kind, kind+"/", name), silent
		case len(words) == 1 && !strings.Contains(words[0], "/"):
			return p.names(cmd, has, words[0], "", typed), silent
		case len(words) > 0:
			return nil, silent
		}
		all, err := p.server.resources()
		if err != nil {
			return nil, silent
		}
		var offers []string
		for _, r := range all {
			if has(r) && strings.HasPrefix(r.Resource, typed) {
				offers = append(offers, r.Resource+"/")
			}
		}
		return offers, silent | cobra.ShellCompDirectiveNoSpace
	}
}

// names returns the names of a kind's objects that begin with typed, each with the prefix in front.
func (p *plugin) names(cmd *cobra.Command, has func(resource) bool, kind, prefix, typed string) []string {
	found, err := p.match(kind, has)
	if err != nil || len(found) != 1 {
		return nil
	}
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return nil
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil
	}
	namespace := ""
	if found[0].namespaced {
		if namespace, _, err = p.config.ToRawKubeConfigLoader().Namespace(); err != nil {
			return nil
		}
	}
	list, err := client.Resource(found[0].GroupVersionResource).Namespace(namespace).List(cmd.Context(), metav1.ListOptions{Limit: 500})
	if err != nil {
		return nil
	}
	var offers []string
	for _, item := range list.Items {
		if strings.HasPrefix(item.Name, typed) {
			offers = append(offers, prefix+item.Name)
		}
	}
	return offers
}

// completeFlags registers completions for the flags of a command and its subcommands, by the flags' names, which mean
// the same in all verbs. It also sets their usage templates.
func (p *plugin) completeFlags(cmd *cobra.Command) {
	for name, values := range map[string]cobra.CompletionFunc{
		"namespace": p.completeNamespace,
		"context":   p.completeContext,
		"dry-run":   cobra.FixedCompletions([]string{"none", "server"}, silent),
		"container": cobra.NoFileCompletions,
		"selector":  cobra.NoFileCompletions,
		"address":   cobra.FixedCompletions([]string{"localhost", "0.0.0.0"}, silent),
	} {
		// The call fails for a missing flag.
		_ = cmd.RegisterFlagCompletionFunc(name, values)
	}
	formats := []string{"json", "yaml", "name"}
	if !cmd.HasParent() {
		formats = []string{"json", "table"}
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, silent))
	if cmd.HasParent() {
		cmd.SetUsageTemplate(usageOfVerb)
	}
	for _, sub := range cmd.Commands() {
		p.completeFlags(sub)
	}
}

func (p *plugin) completeNamespace(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	// Namespaces do not belong to the groups that the plugin may be limited to.
	known := *p.server
	known.groups, known.known = nil, nil
	other := *p
	other.server = &known
	every := func(resource) bool { return true }
	return other.names(cmd, every, "namespaces", "", typed), silent
}

// completeContext completes the contexts of the kubeconfig.
func (p *plugin) completeContext(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	config, err := p.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, silent
	}
	var offers []string
	for name := range config.Contexts {
		offers = append(offers, name)
	}
	slices.Sort(offers)
	return slices.DeleteFunc(offers, func(name string) bool { return !strings.HasPrefix(name, typed) }), silent
}
