package config

import "time"

// TokenWebhookOptions have a server that stands alone ask a webhook whose bearer tokens are that
// nothing else knows. The zero value asks none. They are kube-apiserver's.
type TokenWebhookOptions struct {
	// ConfigFile is a kubeconfig, whose server is sent TokenReviews. One that does not answer
	// within 10 seconds leaves callers unknown.
	ConfigFile string
	// Version is that of the TokenReviews: v1 or v1beta1, which it is if empty.
	Version string
	// CacheTTL is how long an answer is used again; 2 minutes if 0, not at all if negative.
	CacheTTL time.Duration
}

// RequestHeaderOptions say which proxy may send requests on behalf of callers, whom it names in
// headers. The zero value is none for a server that stands alone, and what the cluster says for
// an aggregated one. Headers of other clients count for nothing, and reach no handler.
type RequestHeaderOptions struct {
	// ClientCAFile holds the authorities of the proxy's client certificate (PEM), and is read
	// again when it changes. It replaces what a cluster says about request headers.
	ClientCAFile string
	// AllowedNames are the common names that the certificate may have; any if there are none.
	// A server that stands alone needs them if one of the authorities also issues certificates
	// of callers.
	AllowedNames []string
	// The headers are X-Remote-User, X-Remote-Group and X-Remote-Extra- if not given. UIDs are
	// believed only of headers that are given.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeadersPrefix []string
}
