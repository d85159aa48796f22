package serve

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/annexapi/annex/internal/identity/auth"
)

// openDecisions opens the authorization modes.
func (m *standalone) openDecisions(ctx context.Context) error {
	o := &m.plan.Options
	var err error
	m.decisions, err = auth.OpenAuthorization(ctx, auth.AuthorizationOptions{
		File: o.AuthorizationConfigFile, Server: m.plan.Definition.Name,
		Modes: o.AuthorizationModes, Webhook: o.AuthorizationWebhook, RBAC: roles{m},
	})
	return err
}

// policies returns the authorizers in order.
func (m *standalone) policies() []union.NamedAuthorizer {
	var all []union.NamedAuthorizer
	if own := m.plan.Definition.Authorizer; own != nil {
		all = append(all, union.NamedAuthorizer{AuthorizerName: "server", Authorizer: own})
	}
	return append(all, union.NamedAuthorizer{AuthorizerName: "modes", Authorizer: m.decisions})
}

// roles authorizes by roles and bindings, which are loaded before requests arrive.
type roles struct{ m *standalone }

var _ auth.Policy = roles{}

func (r roles) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return r.m.rights.Policy().Authorize(ctx, a)
}

func (r roles) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return r.m.rights.Policy().ConditionsAwareAuthorize(ctx, a)
}

func (r roles) EvaluateConditions(
	ctx context.Context,
	decision authorizer.ConditionsAwareDecision,
	data authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return r.m.rights.Policy().EvaluateConditions(ctx, decision, data)
}

func (r roles) RulesFor(
	ctx context.Context,
	u user.Info,
	namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return r.m.rights.Policy().RulesFor(ctx, u, namespace)
}
