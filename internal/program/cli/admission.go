package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// admissionFlags declares the flags that select and configure admission plugins, with upstream's names.
func admissionFlags(flags *pflag.FlagSet, o *config.AdmissionOptions) {
	flags.StringSliceVar(&o.EnablePlugins, "enable-admission-plugins", nil, "admission plugins to run in addition to those that run "+
		"anyway: any that the server declares and, with --aggregated, those that take the cluster's objects, which run anyway: "+
		strings.Join(requirements.Plugins(), ", "))
	flags.StringSliceVar(
		&o.DisablePlugins,
		"disable-admission-plugins",
		nil,
		"admission plugins to leave out; what they read of a cluster need not be permitted then",
	)
	flags.StringVar(&o.ConfigFile, "admission-control-config-file", "", "file with the configuration of admission plugins "+
		"(AdmissionConfiguration of apiserver.config.k8s.io/v1)")
}
