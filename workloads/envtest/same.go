package envtest

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// These types are controller-runtime's.
type (
	// CRDInstallOptions are the options for installing CustomResourceDefinitions.
	CRDInstallOptions = envtest.CRDInstallOptions
	// WebhookInstallOptions are the options for serving webhooks.
	WebhookInstallOptions = envtest.WebhookInstallOptions
	// User is the name and the groups of a user.
	User = envtest.User

	// ControlPlane configures the processes of controller-runtime's environment, as the types below do; there are none here.
	ControlPlane = envtest.ControlPlane
	// APIServer is the process of a kube-apiserver.
	APIServer = envtest.APIServer
	// Etcd is the process of an etcd.
	Etcd = envtest.Etcd
	// ListenAddr is an address of a process.
	ListenAddr = envtest.ListenAddr
	// SecureServing are the settings for TLS of a process.
	SecureServing = envtest.SecureServing
	// Authn is a way in which a process authenticates users.
	Authn = envtest.Authn
	// Arguments are the flags of a process.
	Arguments = envtest.Arguments
	// Arg is a flag with its values.
	Arg = envtest.Arg
)

// StartTimeout and StopTimeout are constants of controller-runtime, in seconds, that have no effect.
const (
	StartTimeout = envtest.StartTimeout
	StopTimeout  = envtest.StopTimeout
)

// EmptyArguments returns no flags.
func EmptyArguments() *Arguments { return envtest.EmptyArguments() }

// SetupEnvtestDefaultBinaryAssetsDirectory returns the folder where setup-envtest keeps programs, which are not used here.
func SetupEnvtestDefaultBinaryAssetsDirectory() (string, error) {
	return envtest.SetupEnvtestDefaultBinaryAssetsDirectory()
}

// InstallCRDs installs CustomResourceDefinitions and waits until their objects are served.
func InstallCRDs(config *rest.Config, options CRDInstallOptions) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return envtest.InstallCRDs(config, options)
}

// ReadCRDFiles adds the CustomResourceDefinitions of options.Paths to options.CRDs.
func ReadCRDFiles(options *CRDInstallOptions) error { return envtest.ReadCRDFiles(options) }

// CreateCRDs creates CustomResourceDefinitions, or updates those that exist.
func CreateCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	return envtest.CreateCRDs(config, crds)
}

// WaitForCRDs waits until discovery has the kinds of CustomResourceDefinitions.
func WaitForCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition, options CRDInstallOptions) error {
	return envtest.WaitForCRDs(config, crds, options)
}

// UninstallCRDs deletes CustomResourceDefinitions.
func UninstallCRDs(config *rest.Config, options CRDInstallOptions) error {
	return envtest.UninstallCRDs(config, options)
}

// WaitForWebhooks waits until the configurations of webhooks exist.
func WaitForWebhooks(config *rest.Config, mutating []*admissionv1.MutatingWebhookConfiguration,
	validating []*admissionv1.ValidatingWebhookConfiguration, options WebhookInstallOptions,
) error {
	return envtest.WaitForWebhooks(config, mutating, validating, options)
}
