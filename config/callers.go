package config

import "time"

// TokenWebhookOptions configure a webhook that authenticates bearer tokens which no other authenticator of a server
// that stands alone accepts, as kube-apiserver's flags do. The zero value asks none.
type TokenWebhookOptions struct {
	// ConfigFile is a kubeconfig of the server that gets TokenReviews. If it does not answer within 10 seconds, the
	// token is not accepted.
	ConfigFile string
	// Version is the version of the TokenReviews: v1 or v1beta1. Empty means v1beta1.
	Version string
	// CacheTTL is how long an answer is cached; 0 means 2 minutes, a negative value disables the cache.
	CacheTTL time.Duration
}

// RequestHeaderOptions identify the proxy that may send requests on behalf of callers, whom it names in headers. The
// zero value trusts no proxy on a server that stands alone, and the cluster's proxy on an aggregated server. Such
// headers from other clients are ignored, and reach no handler.
type RequestHeaderOptions struct {
	// ClientCAFile is a PEM file with the authorities of the proxy's client certificate. It is read again when it
	// changes. It replaces the cluster's configuration of request headers.
	ClientCAFile string
	// AllowedNames are the accepted common names of the certificate; empty accepts any. A server that stands alone
	// needs them if one of the authorities also issues certificates to callers.
	AllowedNames []string
	// The header names default to X-Remote-User, X-Remote-Group and X-Remote-Extra-. UIDHeaders have no default: UIDs
	// are taken only from headers that are configured.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeadersPrefix []string
}
