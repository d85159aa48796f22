package config

import "time"

// KubeconfigOptions configure the administrator's kubeconfig in the data directory. Its credential is a client key
// and a certificate that is valid for a year, unless EphemeralToken is set.
type KubeconfigOptions struct {
	// EphemeralToken replaces the key by a short-lived bearer token, so that copies of the kubeconfig expire. A
	// running server renews the token in the data directory when a third of its lifetime is left.
	EphemeralToken bool
	// EphemeralTokenDuration is the lifetime of the token: 0 means 12 hours; the minimum is a minute.
	EphemeralTokenDuration time.Duration
	// None writes no kubeconfig, and does not remove an existing one. The storage verbs cannot find a running server
	// without a kubeconfig.
	None bool
	// PKCS12Password also writes the administrator's certificate and key as PKCS #12, for browsers and curl: to
	// client.p12 beside the certificates (mode 0600), encrypted with this password. The file is written again when
	// the certificate is renewed. It needs a directory for certificates. Empty writes none.
	PKCS12Password string
}
