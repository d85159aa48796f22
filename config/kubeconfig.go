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
}
