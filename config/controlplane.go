package config

import "time"

// ControlPlaneOptions are the operator's options for a server with a control plane. They override
// controlplane.Options, the developer's. The zero value changes nothing.
type ControlPlaneOptions struct {
	// EventTTL is how long an event is kept after its last write, in whole seconds. 0 is the developer's value, and a
	// negative value keeps events for ever.
	EventTTL time.Duration
	// RuntimeConfig turns kinds of the control plane off and on. The key api/all stands for all kinds; api/ga,
	// api/beta and api/alpha for the kinds of such versions; api/v1 for the core group; GROUP/VERSION for a group
	// version; and api/v1/RESOURCE or GROUP/VERSION/RESOURCE for one kind. A longer key wins. By default, kinds of
	// generally available versions are on; leasecandidates, of coordination.k8s.io/v1beta1, are off; no kind has an
	// alpha version. Stored objects of a kind that is turned off stay in the storage, but are not served. A kind that
	// the developer leaves out cannot be turned on.
	RuntimeConfig map[string]bool
	// CRDs are directories of CustomResourceDefinitions, in addition to the developer's: see controlplane.Options.
	CRDs []string
	// Workloads serves the kinds of controlplane.Options.Extension, or does not. Nil is the developer's choice. Stored
	// objects of these kinds stay in the storage when they are not served.
	Workloads *bool
	// ProxyClientCertFile and ProxyClientKeyFile are the certificate and key that the server presents to the servers
	// behind it, in place of a certificate of its own making. Both are PEM files and are read again when they change.
	// They need Options.RequestHeader.ClientCAFile, the authorities that issued the certificate: the servers behind
	// accept caller names from clients with a certificate of these authorities, and a common name in
	// Options.RequestHeader.AllowedNames, or, if that is empty, the name in this certificate.
	ProxyClientCertFile, ProxyClientKeyFile string
}
