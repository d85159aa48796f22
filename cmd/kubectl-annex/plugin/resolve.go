package plugin

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/annexapi/annex/internal/base/typo"
)

// resolve interprets words of the command line that are not built-in verbs. For an action or a view it adds a command
// to root; if a kind comes before its verb, it swaps them. It returns the arguments for root.
func (p *plugin) resolve(_ context.Context, root *cobra.Command, args []string) ([]string, error) {
	completing := len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd)
	args = slices.Clone(args)
	words := args
	if completing {
		if len(args) < 3 {
			return args, nil
		}
		words = args[1 : len(args)-1] // the last word is being typed
	}
	flags, _ := p.someFlags()
	flags.SetInterspersed(false)
	verb := next(flags, words, 0)
	if verb < 0 || words[verb] == "help" || words[verb] == "completion" {
		return args, nil
	}
	own := func(word string) *cobra.Command {
		for _, c := range root.Commands() {
			if c.Name() == word {
				return c
			}
		}
		return nil
	}
	second := next(flags, words, verb+1)
	whole, config := p.someFlags()
	if err := whole.Parse(words); err != nil {
		return args, nil // root reports the error, too
	}
	before := p.server
	p.server = &server{config: config, groups: p.Groups} // from the flags, which root has not parsed yet
	defer func() {
		before.known, before.fresh, before.missing = p.server.known, p.server.fresh, p.server.missing
		p.server = before
	}()

	under := root
	switch cmd := own(words[verb]); {
	case cmd == nil:
	case cmd.Name() == "call":
		if second < 0 {
			return args, nil
		}
		under, verb, second = cmd, second, next(flags, words, second+1)
	default:
		return args, nil
	}
	all, err := p.server.resources()
	if err != nil {
		return nil, err
	}
	is := func(word string) bool {
		kind, _, _ := strings.Cut(word, "/")
		return slices.ContainsFunc(all, func(r resource) bool { return r.isCalled(kind) })
	}
	known := func() bool { return slices.ContainsFunc(all, hasName(words[verb])) || is(words[verb]) }
	if !known() && p.server.refresh() {
		if all, err = p.server.resources(); err != nil {
			return nil, err
		}
	}
	if under == root && !slices.ContainsFunc(all, hasName(words[verb])) && is(words[verb]) {
		if second < 0 {
			return args, nil // root lists the kind's verbs
		}
		isVerb := func(word string) bool { return own(word) != nil || slices.ContainsFunc(all, hasName(word)) }
		third := next(flags, words, second+1)
		if third >= 0 && !isVerb(words[second]) && isVerb(words[third]) { // KIND NAME VERB
			words[second], words[third] = words[third], words[second]
		}
		words[verb], words[second] = words[second], words[verb]
		if own(words[verb]) != nil && words[verb] != "call" {
			// The longer form reaches a subresource that has the name of a built-in verb.
			return args, nil
		}
	}
	if !slices.ContainsFunc(all, hasName(words[verb])) {
		if completing {
			return args, nil
		}
		if under != root || second >= 0 && is(words[second]) {
			return nil, p.noSuchCall(all, words, verb, second)
		}
		return nil, misuse("unknown verb or kind %q%s", words[verb], nearestOf(words[verb], p.vocabulary(root, all)))
	}
	r, err := p.ofWords(all, words[verb], words)
	if err != nil {
		if completing {
			return args, nil
		}
		return nil, err
	}
	cmd := p.newCallOf(r, *r.named(words[verb]))
	under.AddCommand(cmd)
	p.completeFlags(cmd)
	return args, nil
}

// someFlags parses the flags of all verbs, and ignores others.
func (p *plugin) someFlags() (*pflag.FlagSet, *genericclioptions.ConfigFlags) {
	flags, config := pflag.NewFlagSet("", pflag.ContinueOnError), p.newConfig()
	config.AddFlags(flags)
	flags.BoolP("help", "h", false, "")
	flags.ParseErrorsAllowlist.UnknownFlags = true
	return flags, config
}

// next returns the index of the first word from i on that is neither a flag nor a flag's value, or -1. The value of
// an unknown flag may be mistaken for a word.
func next(flags *pflag.FlagSet, words []string, i int) int {
	if i >= len(words) || slices.Contains(words[:i], "--") {
		return -1
	}
	if flags.Parse(words[i:]) != nil || flags.NArg() == 0 {
		return -1
	}
	at := len(words) - flags.NArg()
	if at > 0 && words[at-1] == "--" {
		return -1
	}
	return at
}

// ofWords returns the resource that one of the words names, among those with that action or view, or the only one of
// these.
func (p *plugin) ofWords(all []resource, name string, words []string) (resource, error) {
	var having, named []resource
	for _, r := range all {
		if r.named(name) == nil {
			continue
		}
		having = append(having, r)
		if slices.ContainsFunc(words, func(word string) bool {
			kind, _, _ := strings.Cut(word, "/")
			return r.isCalled(kind)
		}) {
			named = append(named, r)
		}
	}
	switch {
	case len(named) > 0:
		// If there are several, the command reports it, once the word for the kind is known.
		return named[0], nil
	case len(having) == 1:
		return having[0], nil
	}
	return resource{}, misuse("the kind is missing: %s have %s", strings.Join(fullNames(having), ", "), name)
}

// noSuchCall returns the error for a verb that the kind does not have.
func (p *plugin) noSuchCall(all []resource, words []string, verb, second int) error {
	name := words[verb]
	if second >= 0 {
		kind, _, _ := strings.Cut(words[second], "/")
		for _, r := range all {
			if r.isCalled(kind) {
				has := "no subresources"
				if can := r.can(); len(can) > 0 {
					has = strings.Join(can, ", ")
				}
				return misuse("%s have no %s: they have %s%s", r.full(), name, has, nearestOf(name, r.can()))
			}
		}
	}
	return p.unknownCall(name)
}

// vocabulary returns the words that may come first.
func (p *plugin) vocabulary(root *cobra.Command, all []resource) []string {
	names := callNames(all)
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	for _, r := range all {
		names = append(names, r.Resource)
	}
	return names
}

// nearestOf returns the end of a message about an unknown word: a suggestion, or nothing.
func nearestOf(word string, known []string) string {
	if nearest := typo.Nearest(word, known); nearest != "" {
		return ": did you mean " + nearest + "?"
	}
	return ""
}
