package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/program/manifests"
	"github.com/annexapi/annex/store/driver"
)

// completeValues registers shell completion for flags with few possible values, by the flags' names. Shells
// complete the values of all other flags as file names.
func completeValues(cmd *cobra.Command) {
	drivers := new(storageOptions).drivers()
	storages := namesOf(drivers)
	values := map[string][]string{
		"storage":                   storages,
		"only":                      storages,
		"output":                    {"json"},
		"format":                    {"helm", "json", "kustomize", "yaml"},
		"certificates":              {manifests.CertManager, manifests.SecretPrefix, manifests.SelfCertified},
		"disable-admission-plugins": requirements.Plugins(),
		"enable-admission-plugins":  requirements.Plugins(),
	}
	if cmd.Name() == "migrate" {
		durable := namesOf(slices.DeleteFunc(drivers, func(d driver.Driver) bool { return d.Traits().Ephemeral }))
		values["from"], values["to"] = durable, append([]string{etcdSnapshot}, durable...)
	}
	if cmd.Name() == "create" {
		values["output"] = []string{formKubeconfig, formPKCS12, formPEM}
	}
	for name, all := range values {
		if cmd.LocalFlags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, completeOneOf(all)) // the flag exists
		}
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// completeOneOf completes a single value, or the last element of a comma-separated list.
func completeOneOf(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := begun[:strings.LastIndex(begun, ",")+1]
		directive := cobra.ShellCompDirectiveNoFileComp
		var all []string
		for _, value := range values {
			if slices.Contains(strings.Split(before, ","), value) {
				continue
			}
			if all = append(all, before+value); strings.HasSuffix(value, "=") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return all, directive
	}
}
