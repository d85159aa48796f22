package cli

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/annexapi/annex/config"
)

// callersGroup is the title of the help section on authentication and authorization.
const callersGroup = "Callers and their rights"

// callerFlags are the flags of authentication and authorization, with upstream's names and meanings.
type callerFlags struct {
	// Cache lifetimes, of webhook answers or of the cluster's answers, depending on the mode.
	tokenTTL, authorizedTTL, unauthorizedTTL time.Duration
	modes                                    []string
}

func (c *callerFlags) declare(flags *pflag.FlagSet, o *config.Options) {
	flags.StringVar(&o.ClientCAFile, "client-ca-file", "", "authorities whose client certificates are accepted, besides the server's own "+
		"or instead of the cluster's (PEM)")
	flags.StringVar(&o.TokenAuthFile, "token-auth-file", "", `CSV file of bearer tokens: token,user,uid,"group1,group2"`)
	flags.StringVar(&o.AuthenticationConfigFile, "authentication-config", "", "file that names the issuers of tokens that are accepted, "+
		"and what is open to anonymous requests (AuthenticationConfiguration); read again when it changes")
	flags.StringVar(
		&o.TokenWebhook.ConfigFile,
		"authentication-token-webhook-config-file",
		"",
		"kubeconfig of a server that is asked whose tokens are that are not known otherwise (TokenReview)",
	)
	flags.StringVar(
		&o.TokenWebhook.Version,
		"authentication-token-webhook-version",
		"",
		"version of the TokenReviews that are sent: v1 or v1beta1 (default v1beta1)",
	)
	flags.StringSliceVar(&c.modes, "authorization-mode", nil, "how it is decided what callers may do, in this order: RBAC, Webhook, "+
		"AlwaysAllow, AlwaysDeny (default: RBAC; in a cluster, that decides)")
	flags.StringVar(&o.AuthorizationConfigFile, "authorization-config", "", "file that says so instead, and which webhooks are asked what "+
		"(AuthorizationConfiguration); read again when it changes")
	w := &o.AuthorizationWebhook
	flags.StringVar(
		&w.ConfigFile,
		"authorization-webhook-config-file",
		"",
		"kubeconfig of the server that the mode Webhook asks (SubjectAccessReview)",
	)
	flags.StringVar(
		&w.Version,
		"authorization-webhook-version",
		"",
		"version of the SubjectAccessReviews that are sent: v1 or v1beta1 (default v1beta1)",
	)
	flags.DurationVar(&c.authorizedTTL, authorizedTTLFlag, 0, "how long it is remembered that a caller may do something; 0 asks each time "+
		"(default 5m for a webhook, 10s for a cluster)")
	flags.DurationVar(&c.unauthorizedTTL, unauthorizedTTLFlag, 0, "how long it is remembered that a caller may not; 0 asks each time "+
		"(default 30s for a webhook, 10s for a cluster)")
	requestHeaderFlags(flags, &o.RequestHeader)
	flags.BoolVar(&o.AllowLocalhost, "authn-allow-localhost", false, "programs on this machine need no credentials and are "+
		"administrators, and so is every user of it; for development")
	flags.DurationVar(&c.tokenTTL, tokenTTLFlag, 0, "how long it is remembered whose a token is; 0 asks each time (default 2m for a "+
		"webhook, 10s for a cluster)")
}

// requestHeaderFlags declares the flags of the authenticating proxy whose headers identify callers.
func requestHeaderFlags(flags *pflag.FlagSet, o *config.RequestHeaderOptions) {
	flags.StringVar(&o.ClientCAFile, "requestheader-client-ca-file", "", "authorities of the certificate with which a proxy names callers "+
		"in headers, and of --proxy-client-cert-file (PEM; default: none, in a cluster its own)")
	flags.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", nil, "common names that this certificate may have (default: any)")
	flags.StringSliceVar(
		&o.UsernameHeaders,
		"requestheader-username-headers",
		nil,
		"headers that hold the caller's name (default: X-Remote-User)",
	)
	flags.StringSliceVar(
		&o.UIDHeaders,
		"requestheader-uid-headers",
		nil,
		"headers that hold the caller's UID, such as X-Remote-Uid (default: none)",
	)
	flags.StringSliceVar(
		&o.GroupHeaders,
		"requestheader-group-headers",
		nil,
		"headers that hold the caller's groups (default: X-Remote-Group)",
	)
	flags.StringSliceVar(
		&o.ExtraHeadersPrefix,
		"requestheader-extra-headers-prefix",
		nil,
		"beginning of headers with more about the caller (default: X-Remote-Extra-)",
	)
}

const (
	tokenTTLFlag        = "authentication-token-webhook-cache-ttl"
	authorizedTTLFlag   = "authorization-webhook-cache-authorized-ttl"
	unauthorizedTTLFlag = "authorization-webhook-cache-unauthorized-ttl"
)

// complete sets the options that depend on the mode.
func (c *callerFlags) complete(flags *pflag.FlagSet, o *config.Options) error {
	for _, mode := range c.modes {
		o.AuthorizationModes = append(o.AuthorizationModes, config.AuthorizationMode(mode))
	}
	token, authorized, unauthorized := &o.TokenWebhook.CacheTTL, &o.AuthorizationWebhook.AuthorizedCacheTTL,
		&o.AuthorizationWebhook.UnauthorizedCacheTTL
	if o.Aggregated {
		token, authorized, unauthorized = &o.Cluster.TokenCacheTTL, &o.Cluster.AuthorizedCacheTTL, &o.Cluster.UnauthorizedCacheTTL
	}
	return errors.Join(
		changed(flags, tokenTTLFlag, &c.tokenTTL, token),
		changed(flags, authorizedTTLFlag, &c.authorizedTTL, authorized),
		changed(flags, unauthorizedTTLFlag, &c.unauthorizedTTL, unauthorized),
	)
}
