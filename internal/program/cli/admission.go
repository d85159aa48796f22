package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// admissionFlags declares the flags that select and configure admission plugins, with upstream's names.
func admissionFlags(flags *pflag.FlagSet, o *config.AdmissionOptions) {
	flags.StringSliceVar(&o.EnablePlugins, "enable-admission-plugins", nil, "admission plugins to enable in addition to the default ones: "+
		"plugins that the server declares and, with --aggregated, plugins that use objects of the cluster, all enabled by default: "+
		strings.Join(requirements.Plugins(), ", "))
	flags.StringSliceVar(
		&o.DisablePlugins,
		"disable-admission-plugins",
		nil,
		"admission plugins to disable; the server then needs no permission to read their objects from the cluster",
	)
	flags.StringVar(&o.ConfigFile, "admission-control-config-file", "", "file with the configuration of admission plugins "+
		"(AdmissionConfiguration of apiserver.config.k8s.io/v1)")
}
