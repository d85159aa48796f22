package auth

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
)

// NewAuthorizer returns the authorizer of a server that stands alone. The group
// system:masters may do everything; every caller, anonymous ones included, may read the
// open paths; all else is up to the policies, which are asked in order. Without a policy,
// all else is forbidden, discovery included.
//
// The names of policies begin the reason in a refusal. They must differ from each
// other and from privileged-groups, open-paths and policy.
func NewAuthorizer(policies ...union.NamedAuthorizer) (authorizer.Authorizer, error) {
	chain := []union.NamedAuthorizer{
		{AuthorizerName: "privileged-groups", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		{AuthorizerName: "open-paths", Authorizer: authorizer.AuthorizerFunc(authorizeOpenPaths)},
	}
	if len(policies) == 0 {
		chain = append(chain, union.NamedAuthorizer{AuthorizerName: "policy", Authorizer: authorizer.AuthorizerFunc(refuse)})
	}
	return union.New(append(chain, policies...)...)
}

func authorizeOpenPaths(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() && isOpen(a.GetVerb(), a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func refuse(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "only members of the group " + user.SystemPrivilegedGroup + " are allowed in", nil
}
