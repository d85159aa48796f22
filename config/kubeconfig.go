package config

import "time"

// KubeconfigOptions say how the administrator's kubeconfig in the data directory proves who the
// administrator is: by a key that lives a year, unless EphemeralToken says otherwise.
type KubeconfigOptions struct {
	// EphemeralToken has it hold a short-lived bearer token in the place of the key, so that
	// copies of it end by themselves. While the server runs, it renews the one in the data
	// directory when a third of its life is left.
	EphemeralToken bool
	// EphemeralTokenDuration is how long the token is valid: 12 hours if 0, a minute at least.
	EphemeralTokenDuration time.Duration
	// None writes no kubeconfig, and takes away none that is there. The storage verbs do not find
	// a server that runs without one.
	None bool
	// PKCS12Password has the administrator's certificate and its key written as PKCS #12, too, for
	// browsers and curl: as client.p12 beside the certificates (0600), encrypted with this password.
	// It is written again when the certificate is renewed. It needs a directory of certificates.
	// Empty writes none.
	PKCS12Password string
}
