package config

import "time"

// AuthorizationMode is a way to authorize the callers of a server that stands alone. Members of system:masters may do
// everything in all modes.
type AuthorizationMode string

const (
	// AuthorizationRBAC uses the roles and bindings of rbac.authorization.k8s.io.
	AuthorizationRBAC AuthorizationMode = "RBAC"
	// AuthorizationWebhook asks the server in Options.AuthorizationWebhook.
	AuthorizationWebhook AuthorizationMode = "Webhook"
	// AuthorizationAlwaysAllow allows authenticated callers everything. It is meant for development.
	AuthorizationAlwaysAllow AuthorizationMode = "AlwaysAllow"
	// AuthorizationAlwaysDeny allows nothing.
	AuthorizationAlwaysDeny AuthorizationMode = "AlwaysDeny"
)

// AuthorizationWebhookOptions configure the server that AuthorizationWebhook asks, by a SubjectAccessReview for each
// request, as kube-apiserver's flags do. A review without an answer within 10 seconds is left to the next modes. An
// AuthorizationConfiguration offers more settings.
type AuthorizationWebhookOptions struct {
	// ConfigFile is a kubeconfig.
	ConfigFile string
	// Version is the version of the SubjectAccessReviews: v1 or v1beta1. Empty means v1beta1.
	Version string
	// AuthorizedCacheTTL and UnauthorizedCacheTTL are how long answers that allow and answers that do not are cached:
	// 0 means 5 minutes and 30 seconds, a negative value disables the cache.
	AuthorizedCacheTTL, UnauthorizedCacheTTL time.Duration
}
