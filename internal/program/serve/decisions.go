package serve

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/annexapi/annex/internal/identity/auth"
)

// openDecisions opens the authorization modes.
func (m *standalone) openDecisions(ctx context.Context) error {
	o := &m.plan.Options
	var err error
	m.decisions, err = auth.OpenAuthorization(ctx, auth.AuthorizationOptions{
		File: o.AuthorizationConfigFile, Server: m.plan.Definition.Name,
		Modes: o.AuthorizationModes, Webhook: o.AuthorizationWebhook, RBAC: m.policy,
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
