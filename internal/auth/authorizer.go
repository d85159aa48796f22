package auth

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
)

// NewAuthorizer returns the authorizer of a server that stands alone, and what tells callers
// in advance what it allows. The group system:masters may do everything; every caller,
// anonymous ones included, may read the open paths; all else is up to the policies, which
// are asked in order. What none of them allows is forbidden, discovery included.
//
// Policies that are no authorizer.RuleResolver leave what callers are told incomplete. Their
// names must differ from each other and from privileged-groups and open-paths.
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
	return all, union.NewRuleResolvers(resolvers...), err
}

func authorizeOpenPaths(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() && isOpen(a.GetVerb(), a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// unknownRules are those of an authorizer that has only answers.
type unknownRules struct{}

func (unknownRules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, errors.New("the server's own authorizer does not list what it allows")
}
