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
	flags.StringVar(&o.ClientCAFile, "client-ca-file", "", "file with certificate authorities for client certificates, in addition to the "+
		"server's own authority or instead of the cluster's (PEM)")
	flags.StringVar(&o.TokenAuthFile, "token-auth-file", "", `CSV file of bearer tokens: token,user,uid,"group1,group2"`)
	flags.StringVar(&o.AuthenticationConfigFile, "authentication-config", "", "file with the accepted token issuers and the paths open to "+
		"anonymous requests (AuthenticationConfiguration); reloaded when it changes")
	flags.StringVar(
		&o.TokenWebhook.ConfigFile,
		"authentication-token-webhook-config-file",
		"",
		"kubeconfig of a webhook that authenticates tokens unknown to all other authenticators (TokenReview)",
	)
	flags.StringVar(
		&o.TokenWebhook.Version,
		"authentication-token-webhook-version",
		"",
		"API version of TokenReviews for the webhook: v1 or v1beta1 (default v1beta1)",
	)
	flags.StringSliceVar(&c.modes, "authorization-mode", nil, "ordered list of authorization modes: RBAC, Webhook, AlwaysAllow, AlwaysDeny "+
		"(default: RBAC; an aggregated server sends each decision to its cluster)")
	flags.StringVar(&o.AuthorizationConfigFile, "authorization-config", "", "file with authorization modes and webhooks "+
		"(AuthorizationConfiguration), instead of --authorization-mode; reloaded when it changes")
	w := &o.AuthorizationWebhook
	flags.StringVar(
		&w.ConfigFile,
		"authorization-webhook-config-file",
		"",
		"kubeconfig of the webhook of the mode Webhook (SubjectAccessReview)",
	)
	flags.StringVar(
		&w.Version,
		"authorization-webhook-version",
		"",
		"API version of SubjectAccessReviews for the webhook: v1 or v1beta1 (default v1beta1)",
	)
	flags.DurationVar(&c.authorizedTTL, authorizedTTLFlag, 0, "duration to cache allowed decisions; 0 disables the cache (default 5m for a "+
		"webhook, 10s for a cluster)")
	flags.DurationVar(&c.unauthorizedTTL, unauthorizedTTLFlag, 0, "duration to cache denied decisions; 0 disables the cache (default "+
		"30s for a webhook, 10s for a cluster)")
	requestHeaderFlags(flags, &o.RequestHeader)
	flags.BoolVar(&o.AllowLocalhost, "authn-allow-localhost", false, "grant administrator rights to requests from this machine without "+
		"credentials; every user of the machine can send such requests; for development")
	flags.DurationVar(&c.tokenTTL, tokenTTLFlag, 0, "duration to cache the user of a token; 0 disables the cache (default 2m for a "+
		"webhook, 10s for a cluster)")
}

// requestHeaderFlags declares the flags of the authenticating proxy whose headers identify callers.
func requestHeaderFlags(flags *pflag.FlagSet, o *config.RequestHeaderOptions) {
	flags.StringVar(&o.ClientCAFile, "requestheader-client-ca-file", "", "file with the certificate authorities of proxies that send "+
		"the user in headers, and of --proxy-client-cert-file (PEM; default: none; an aggregated server uses the cluster's)")
	flags.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", nil, "accepted common names of the proxy's certificate "+
		"(default: any)")
	flags.StringSliceVar(
		&o.UsernameHeaders,
		"requestheader-username-headers",
		nil,
		"headers with the user name (default: X-Remote-User)",
	)
	flags.StringSliceVar(
		&o.UIDHeaders,
		"requestheader-uid-headers",
		nil,
		"headers with the user's UID, such as X-Remote-Uid (default: none)",
	)
	flags.StringSliceVar(
		&o.GroupHeaders,
		"requestheader-group-headers",
		nil,
		"headers with the user's groups (default: X-Remote-Group)",
	)
	flags.StringSliceVar(
		&o.ExtraHeadersPrefix,
		"requestheader-extra-headers-prefix",
		nil,
		"prefixes of headers with extra attributes of the user (default: X-Remote-Extra-)",
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
