package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addAliases lets serve take the flags of the server that this one replaces, which Annex has by
// other names. --etcd-servers, --request-timeout, --token-auth-file, --unrestricted-update and
// --authn-allow-localhost are called so here, too.
func addAliases(root *cobra.Command) {
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		panic(err) // it is a verb of every server
	}
	flags := serve.Flags()
	flags.Var(&alias{flags, "string", map[string][]setting{
		"etcd": {{"storage", "etcd"}},
		"file": {{"storage", "files"}},
	}}, "backend", "etcd or file: as --storage=etcd and --storage=files")
	flags.Var(
		&alias{flags, "string", map[string][]setting{"": {{"files-dir", ""}}}},
		"file-rootpath",
		"directory of the backend file, as --files-dir",
	)
	boolean(flags, "kubectl-disabled", "write no kubeconfig, and refuse kubectl: as --no-kubeconfig --refuse-user-agents=kubectl",
		[]setting{{"no-kubeconfig", "true"}, {"refuse-user-agents", "kubectl"}})
	boolean(flags, "kubectl-ephemeral-token", "the kubeconfig holds a short-lived token: as --ephemeral-token",
		[]setting{{"ephemeral-token", "true"}})
}

// boolean is a flag that may be given without a value. False is the default, and changes nothing.
func boolean(flags *pflag.FlagSet, name, usage string, settings []setting) {
	flags.Var(&alias{flags, "bool", map[string][]setting{"true": settings, "false": nil}}, name, usage)
	flags.Lookup(name).NoOptDefVal = "true"
}

// setting is a value of another flag; empty is the value that is given.
type setting struct{ flag, value string }

// alias is a flag that is another one by its values; the empty one stands for all.
type alias struct {
	flags  *pflag.FlagSet
	kind   string
	values map[string][]setting
}

// String implements pflag.Value: an alias has no default of its own.
func (a *alias) String() string { return "" }

// Type implements pflag.Value.
func (a *alias) Type() string { return a.kind }

// Set implements pflag.Value.
func (a *alias) Set(value string) error {
	settings, ok := a.values[value]
	if !ok {
		settings, ok = a.values[""]
	}
	if !ok || value == "" {
		known := slices.DeleteFunc(slices.Sorted(maps.Keys(a.values)), func(v string) bool { return v == "" })
		if len(known) == 0 {
			return fmt.Errorf("it is empty")
		}
		return fmt.Errorf("choose %s", strings.Join(known, " or "))
	}
	for _, s := range settings {
		if s.value == "" {
			s.value = value
		}
		if err := a.flags.Set(s.flag, s.value); err != nil {
			return err
		}
	}
	return nil
}
