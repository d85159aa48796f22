package auth

import (
	"context"
	"errors"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
)

// NewAuthorizer returns the authorizer of a standalone server, and the resolver of its rules. The group
// system:masters may do everything, and every caller, also an anonymous one, may read the open paths. The policies
// decide about other requests, in order. A request that none of them allows is forbidden, including discovery.
//
// A policy without authorizer.RuleResolver makes the resolved rules incomplete. The names of policies must differ
// from each other and from privileged-groups and open-paths.
func NewAuthorizer(policies ...union.NamedAuthorizer) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	chain := append([]union.NamedAuthorizer{
		{AuthorizerName: "privileged-groups", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		{AuthorizerName: "open-paths", Authorizer: authorizer.AuthorizerFunc(authorizeOpenPaths)},
	}, policies...)
	var resolvers []authorizer.RuleResolver
	for _, policy := range policies {
		resolver, ok := policy.Authorizer.(authorizer.RuleResolver)
		if !ok {
			resolver = unknownRules{}
		}
		resolvers = append(resolvers, resolver)
	}
	all, err := union.New(chain...)
	if err != nil {
		return nil, nil, err
	}
	rules := union.NewRuleResolvers(resolvers...)
	last, nested := chain[len(chain)-1].Authorizer.(*Authorization)
	if !nested {
		return all, rules, nil
	}
	first, err := union.New(chain[:len(chain)-1]...)
	return namedUnion{all, first, last}, rules, err
}

// namedUnion is a union whose last member is a chain that prefixes its reasons with names of its own. It omits the name of
// the chain from the reasons that refused callers see.
type namedUnion struct {
	authorizer.Authorizer
	first authorizer.Authorizer
	last  *Authorization
}

// Authorize implements authorizer.Authorizer.
func (n namedUnion) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.first.Authorize(ctx, a)
	if decision != authorizer.DecisionNoOpinion {
		return decision, reason, err
	}
	decision, said, failed := n.last.Authorize(ctx, a)
	if decision != authorizer.DecisionNoOpinion {
		return decision, said, failed
	}
	if reason != "" && said != "" {
		reason += "\n"
	}
	return decision, reason + said, utilerrors.NewAggregate([]error{err, failed})
}

func authorizeOpenPaths(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() && isOpen(a.GetVerb(), a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// unknownRules resolves the rules of an authorizer that cannot list them.
type unknownRules struct{}

func (unknownRules) RulesFor(
	context.Context,
	user.Info,
	string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, errors.New("the server's authorizer does not list rules")
}
