package config

// AdmissionOptions say which admission plugins a server runs, and how they are configured. The
// zero value runs those that run by default.
type AdmissionOptions struct {
	// EnablePlugins and DisablePlugins name plugins: those of Server.AdmissionPlugins, and
	// those of an aggregated server that take the cluster's objects, which are
	// NamespaceLifecycle, MutatingAdmissionPolicy, MutatingAdmissionWebhook,
	// ValidatingAdmissionPolicy and ValidatingAdmissionWebhook. The latter run by default;
	// what one that is disabled would read of the cluster is not asked for.
	EnablePlugins  []string
	DisablePlugins []string
	// ConfigFile is an AdmissionConfiguration of apiserver.config.k8s.io/v1, which holds the
	// configuration of each plugin or names its file. It is read once, by New.
	ConfigFile string
}
