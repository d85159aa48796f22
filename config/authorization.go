package config

import "time"

// AuthorizationMode is how a server that stands alone decides what callers may do. Members
// of system:masters may do everything in all modes.
type AuthorizationMode string

const (
	// AuthorizationRBAC asks the roles and bindings of rbac.authorization.k8s.io.
	AuthorizationRBAC AuthorizationMode = "RBAC"
	// AuthorizationWebhook asks the server that Options.AuthorizationWebhook names.
	AuthorizationWebhook AuthorizationMode = "Webhook"
	// AuthorizationAlwaysAllow lets every caller that is known do everything. It is meant
	// for development.
	AuthorizationAlwaysAllow AuthorizationMode = "AlwaysAllow"
	// AuthorizationAlwaysDeny allows nothing.
	AuthorizationAlwaysDeny AuthorizationMode = "AlwaysDeny"
)

// AuthorizationWebhookOptions say which server AuthorizationWebhook asks, by a
// SubjectAccessReview for each request. They are kube-apiserver's. What it does not answer
// within 10 seconds is left to the modes after it. An AuthorizationConfiguration says more.
type AuthorizationWebhookOptions struct {
	// ConfigFile is a kubeconfig.
	ConfigFile string
	// Version is that of the SubjectAccessReviews: v1 or v1beta1, which it is if empty.
	Version string
	// AuthorizedCacheTTL and UnauthorizedCacheTTL are how long an answer is used again that
	// allows or does not: 5 minutes and 30 seconds if 0, not at all if negative.
	AuthorizedCacheTTL, UnauthorizedCacheTTL time.Duration
}
