package config

// AdmissionOptions select and configure the admission plugins of a server. The zero value runs the default plugins.
type AdmissionOptions struct {
	// EnablePlugins and DisablePlugins name plugins: those of Server.AdmissionPlugins, and the plugins of an
	// aggregated server that use the cluster's objects, which are NamespaceLifecycle, MutatingAdmissionPolicy,
	// MutatingAdmissionWebhook, ValidatingAdmissionPolicy and ValidatingAdmissionWebhook. The latter five run by
	// default; the server does not read the cluster's objects for a disabled plugin.
	EnablePlugins  []string
	DisablePlugins []string
	// ConfigFile is an AdmissionConfiguration of apiserver.config.k8s.io/v1, which holds the configuration of each
	// plugin or names its file. It is read once, by New.
	ConfigFile string
}
