package auth

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	"k8s.io/apiserver/pkg/util/webhook"
	authorizerwebhook "k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/configfile"
	"github.com/annexapi/annex/internal/identity/credential"
)

// Policy is an authorizer that can list its rules.
type Policy interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// Authorization is a chain of authorizers from options or from an AuthorizationConfiguration of
// apiserver.config.k8s.io. Run reloads the file when it changes.
type Authorization struct {
	options AuthorizationOptions
	file    *configfile.File // nil without a file
	current atomic.Pointer[chain]
	// types are the non-webhook authorizers of the file at the start. A reload cannot change them.
	types sets.Set[string]
}

var _ Policy = (*Authorization)(nil)

// AuthorizationOptions configure an Authorization by File, or else by Modes.
type AuthorizationOptions struct {
	File string
	// Server is the name of the server in metrics.
	Server  string
	Modes   []config.AuthorizationMode
	Webhook config.AuthorizationWebhookOptions
	// RBAC is the authorizer of the mode RBAC.
	RBAC Policy
}

// chain is the authorizer in force.
type chain struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// OpenAuthorization reads the file or the webhook's kubeconfig. An error is a single line with the file and, for a
// mistake in it, line and field.
func OpenAuthorization(ctx context.Context, o AuthorizationOptions) (*Authorization, error) {
	a := &Authorization{options: o}
	if o.File == "" {
		made, err := a.chain(legacy(o))
		if err != nil {
			return nil, fmt.Errorf("Options.AuthorizationWebhook.ConfigFile %s: %w", o.Webhook.ConfigFile, err)
		}
		a.current.Store(made)
		return a, nil
	}
	metrics.RegisterMetrics()
	a.file = &configfile.File{
		What: "Authorization configuration", Path: o.File, Use: a.use,
		Reloaded: func(data string) { metrics.RecordAuthorizationConfigAutomaticReloadSuccess(o.Server, data) },
		Refused:  func() { metrics.RecordAuthorizationConfigAutomaticReloadFailure(o.Server) },
	}
	data, err := a.file.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("Options.AuthorizationConfigFile %s: %w", o.File, err)
	}
	metrics.RecordAuthorizationConfigLastConfigInfo(o.Server, data)
	return a, nil
}

// ByRoles reports whether RBAC is one of the authorizers. The result does not change after the start.
func (a *Authorization) ByRoles() bool {
	if a.file != nil {
		return a.types.Has(string(config.AuthorizationRBAC))
	}
	return slices.Contains(a.options.Modes, config.AuthorizationRBAC)
}

// Run reloads the file when it changes, until ctx is done.
func (a *Authorization) Run(ctx context.Context) {
	if a.file != nil {
		a.file.Run(ctx)
	}
}

// legacy returns the configuration that is equivalent to options without a file, as in kube-apiserver.
func legacy(o AuthorizationOptions) *apiserver.AuthorizationConfiguration {
	c := &apiserver.AuthorizationConfiguration{}
	for _, mode := range o.Modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(string(mode))}
		if mode == config.AuthorizationWebhook {
			a.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL:              metav1.Duration{Duration: max(o.Webhook.AuthorizedCacheTTL, 0)},
				CacheAuthorizedRequests:    true,
				UnauthorizedTTL:            metav1.Duration{Duration: max(o.Webhook.UnauthorizedCacheTTL, 0)},
				CacheUnauthorizedRequests:  true,
				Timeout:                    metav1.Duration{Duration: webhookTimeout},
				SubjectAccessReviewVersion: o.Webhook.Version,
				FailurePolicy:              apiserver.FailurePolicyNoOpinion,
				ConnectionInfo:             apiserver.WebhookConnectionInfo{KubeConfigFile: &o.Webhook.ConfigFile},
			}
		}
		c.Authorizers = append(c.Authorizers, a)
	}
	return c
}

// use puts a new content of the file into force.
func (a *Authorization) use(_ context.Context, data []byte) error {
	parsed, err := parseAuthorization(data)
	if err != nil {
		return err
	}
	types := sets.New[string]()
	for _, c := range parsed.Authorizers {
		if c.Type != apiserver.TypeWebhook {
			types.Insert(string(c.Type))
		}
	}
	if a.types != nil && !a.types.Equal(types) {
		return configfile.Mistake(
			data,
			"authorizers",
			fmt.Errorf("the types other than Webhook are %s, but a running server cannot change them: it "+
				"started with %s", list(types), list(a.types)),
		)
	}
	next, err := a.chain(parsed)
	if err != nil {
		return err
	}
	a.types = types
	a.current.Store(next)
	return nil
}

func list(types sets.Set[string]) string {
	if len(types) == 0 {
		return "none"
	}
	return strings.Join(sets.List(types), ", ")
}

// modes returns the types of authorizers.
func modes() sets.Set[string] {
	return sets.New(
		string(config.AuthorizationRBAC),
		string(config.AuthorizationWebhook),
		string(config.AuthorizationAlwaysAllow),
		string(config.AuthorizationAlwaysDeny),
	)
}

// ofWebhook matches field paths of a webhook, in which upstream's validation omits the element webhook.
var ofWebhook = regexp.MustCompile(
	`^(authorizers\[\d+\])\.(timeout|authorizedTTL|unauthorizedTTL|subjectAccessReviewVersion|matchCondition\w*|failurePolicy|connectionInfo)`,
)

func parseAuthorization(data []byte) (*apiserver.AuthorizationConfiguration, error) {
	parsed, err := configfile.Decode[apiserver.AuthorizationConfiguration](data, "AuthorizationConfiguration")
	if err != nil {
		return nil, err
	}
	repeatable := sets.New(string(apiserver.TypeWebhook))
	mistakes := validation.ValidateAuthorizationConfiguration(authorizationcel.NewDefaultCompiler(), nil, parsed, modes(), repeatable)
	for _, m := range mistakes {
		m.Field = ofWebhook.ReplaceAllString(m.Field, "$1.webhook.$2")
	}
	for i, c := range parsed.Authorizers {
		if c.Webhook != nil && c.Webhook.ConnectionInfo.Type == apiserver.AuthorizationWebhookConnectionInfoTypeInCluster {
			at := field.NewPath("authorizers").Index(i).Child("webhook", "connectionInfo", "type")
			mistakes = append(
				mistakes,
				field.NotSupported(at, c.Webhook.ConnectionInfo.Type, []string{apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile}),
			)
		}
	}
	return parsed, configfile.Mistakes(data, mistakes)
}

// chain creates the authorizers of a configuration, in its order.
func (a *Authorization) chain(c *apiserver.AuthorizationConfiguration) (*chain, error) {
	var deciders []union.NamedAuthorizer
	var resolvers []authorizer.RuleResolver
	for i, entry := range c.Authorizers {
		decider, err := a.authorizer(entry)
		if err != nil {
			return nil, fmt.Errorf("authorizers[%d]: %w", i, err)
		}
		deciders = append(deciders, union.NamedAuthorizer{AuthorizerName: entry.Name, Authorizer: decider})
		resolvers = append(resolvers, decider)
	}
	all, err := union.New(deciders...)
	if err != nil {
		return nil, err
	}
	return &chain{all, union.NewRuleResolvers(resolvers...)}, nil
}

func (a *Authorization) authorizer(c apiserver.AuthorizerConfiguration) (Policy, error) {
	switch config.AuthorizationMode(c.Type) {
	case config.AuthorizationRBAC:
		return a.options.RBAC, nil
	case config.AuthorizationAlwaysAllow:
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case config.AuthorizationAlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case config.AuthorizationWebhook:
		return newAuthorizationWebhook(c.Name, c.Webhook)
	}
	return nil, fmt.Errorf("type %q", c.Type)
}

func newAuthorizationWebhook(name string, c *apiserver.WebhookConfiguration) (Policy, error) {
	if c.ConnectionInfo.KubeConfigFile == nil {
		return nil, errors.New("no kubeconfig")
	}
	client, err := webhook.LoadKubeconfig(*c.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	client.Timeout = c.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if c.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	ttl := func(cached bool, ttl metav1.Duration) time.Duration {
		if !cached {
			return 0
		}
		return ttl.Duration
	}
	figures := struct {
		webhookmetrics.NoopRequestMetrics // as in kube-apiserver
		webhookmetrics.WebhookMetrics
		authorizationcel.MatcherMetrics
	}{WebhookMetrics: webhookmetrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics()}
	asking := func(authorized, unauthorized time.Duration) (*authorizerwebhook.WebhookAuthorizer, error) {
		return authorizerwebhook.New(client, c.SubjectAccessReviewVersion, authorized, unauthorized,
			*authorizerwebhook.DefaultRetryBackoff(), onError, c.MatchConditions, name, figures, authorizationcel.NewDefaultCompiler())
	}
	cached, err := asking(ttl(c.CacheAuthorizedRequests, c.AuthorizedTTL), ttl(c.CacheUnauthorizedRequests, c.UnauthorizedTTL))
	if err != nil {
		return nil, err
	}
	direct, err := asking(0, 0)
	if err != nil {
		return nil, err
	}
	return struct {
		authorizer.Authorizer
		authorizer.RuleResolver
	}{credential.UncachedAuthorizer(cached, direct), cached}, nil
}

// Authorize implements authorizer.Authorizer.
func (a *Authorization) Authorize(ctx context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	return a.current.Load().Authorize(ctx, r)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a *Authorization) ConditionsAwareAuthorize(ctx context.Context, r authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return a.current.Load().ConditionsAwareAuthorize(ctx, r)
}

// EvaluateConditions implements authorizer.Authorizer.
func (a *Authorization) EvaluateConditions(
	ctx context.Context,
	decision authorizer.ConditionsAwareDecision,
	data authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return a.current.Load().EvaluateConditions(ctx, decision, data)
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorization) RulesFor(
	ctx context.Context,
	u user.Info,
	namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return a.current.Load().RulesFor(ctx, u, namespace)
}
