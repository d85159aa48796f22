package config

import "time"

// ControlPlaneOptions are the operator's, of a server with a control plane. They are over the
// developer's, which are controlplane.Options. The zero value changes nothing.
type ControlPlaneOptions struct {
	// EventTTL is how long an event is kept after it was last written, in whole seconds; 0 is
	// what the developer says, and negative is for ever.
	EventTTL time.Duration
	// RuntimeConfig turns kinds of the control plane off and on: api/all are all of them, api/ga,
	// api/beta and api/alpha those of such versions, api/v1 those of the core group,
	// GROUP/VERSION those of a group, and api/v1/RESOURCE and GROUP/VERSION/RESOURCE one kind. A
	// longer name wins. On are those of generally available versions; leasecandidates, of
	// coordination.k8s.io/v1beta1, are off, and there is none of an alpha version. Objects that are stored of what is turned off
	// stay, unseen; what the developer leaves out stays out.
	RuntimeConfig map[string]bool
	// CRDs are folders of CustomResourceDefinitions, beside those of the developer: see
	// controlplane.Options.
	CRDs []string
	// ProxyClientCertFile and ProxyClientKeyFile are the certificate that the server shows to those
	// behind it, in place of one that it makes, both in PEM and read again when they change. They need
	// Options.RequestHeader.ClientCAFile, the authorities that have issued it: servers behind believe
	// the names of callers of these, in certificates of Options.RequestHeader.AllowedNames, or of the name
	// in this one if there are none.
	ProxyClientCertFile, ProxyClientKeyFile string
}
