package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addAliases adds to serve the flags of the server that this one replaces, if Annex has them under other names. The
// flags --etcd-servers, --request-timeout, --token-auth-file, --unrestricted-update and --authn-allow-localhost have
// the same names in Annex.
func addAliases(root *cobra.Command) {
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		panic(err) // every server has this verb
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

// boolean adds a flag that may be given without a value. False is the default, and sets nothing.
func boolean(flags *pflag.FlagSet, name, usage string, settings []setting) {
	flags.Var(&alias{flags, "bool", map[string][]setting{"true": settings, "false": nil}}, name, usage)
	flags.Lookup(name).NoOptDefVal = "true"
}

// setting is a value for another flag; empty means the given value.
type setting struct{ flag, value string }

// alias is a flag whose values set other flags; the empty value stands for all values.
type alias struct {
	flags  *pflag.FlagSet
	kind   string
	values map[string][]setting
}

// String implements pflag.Value. An alias has no default of its own.
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
