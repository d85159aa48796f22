package serve

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	registryrest "k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/registry"
)

// openAccountKeys opens the keys that sign and verify service account tokens.
func openAccountKeys(p *plan.Plan) (*accounts.Keys, error) {
	signing, own := p.SigningKey()
	return accounts.OpenKeys(accounts.KeyOptions{
		SigningFile: signing, MakeSigning: own, Files: p.Options.ServiceAccounts.KeyFiles, Clock: p.Options.Clock,
	})
}

// serveAccounts adds service accounts to a standalone server's configuration, and returns their tokens.
func serveAccounts(p *plan.Plan, keys *accounts.Keys, c *upstream.Config) *accounts.Tokens {
	o := p.Options.ServiceAccounts
	tokens := accounts.NewTokens(
		accounts.Options{
			Issuers: o.Issuers, Audiences: p.Options.APIAudiences, MaxExpiration: max(0, o.MaxTokenExpiration), Clock: p.Options.Clock,
		},
		keys,
		getterOf(c.Kinds, accounts.Resource),
		boundKinds(c),
	)
	c.BuiltIn[corev1.SchemeGroupVersion][accounts.Resource.Resource+"/token"] = tokens.Requests()
	if p.Discoverable() {
		c.Discovery = tokens.Discovery(o.JWKSURI, c.Address)
	}
	return tokens
}

// getterOf returns the getter for the objects of a resource.
func getterOf(kinds []*registry.Kind, resource schema.GroupResource) registryrest.Getter {
	k := kindOf(kinds, resource)
	if k == nil {
		return nil
	}
	getter, _ := k.Storage()[resource.Resource].(registryrest.Getter)
	return getter
}

// boundKinds returns the kinds to which service account tokens can be bound.
func boundKinds(c *upstream.Config) accounts.Kinds {
	kinds := c.Kinds
	return func(gvk schema.GroupVersionKind) (accounts.Kind, bool) {
		for _, k := range kinds {
			for _, v := range k.Definition.Versions {
				if v.GroupVersionKind() != gvk || v.Unserved || k.Definition.ClusterScoped {
					continue
				}
				resource := k.Definition.GroupResource()
				if getter := getterOf(kinds, resource); getter != nil {
					return accounts.Kind{Resource: resource, Storage: getter}, true
				}
			}
		}
		// The extension of a control plane is opened after the accounts, and before the first request.
		resource, getter, namespaced := c.Foreign.Getter(gvk)
		// kube-apiserver binds tokens to no objects outside of namespaces but nodes.
		if getter == nil || !namespaced && gvk != corev1.SchemeGroupVersion.WithKind("Node") {
			return accounts.Kind{}, false
		}
		return accounts.Kind{Resource: resource, Storage: getter, ClusterScoped: !namespaced}, true
	}
}

// identities returns the users as which a control plane's controllers work, by loopback token. If authorization
// does not use roles, only a webhook could permit their requests, and it does not know these users. They then have
// all permissions.
func identities(p *plan.Plan, decisions *auth.Authorization, own *loopback.Loopback) map[string]user.Info {
	known := map[string]user.Info{}
	plane := p.Definition.Plane
	if plane == nil {
		return known
	}
	add := func(name string, info *user.DefaultInfo) {
		if !decisions.ByRoles() {
			info.Groups = append(info.Groups, user.SystemPrivilegedGroup)
		}
		known[own.TokenOf(name)] = info
	}
	for _, c := range plane.Controllers {
		if c.Account != "" {
			account := serviceaccount.UserInfo(metav1.NamespaceSystem, c.Account, "").(*user.DefaultInfo)
			add(c.Account, account)
		}
	}
	add(user.KubeControllerManager, &user.DefaultInfo{Name: user.KubeControllerManager})
	return known
}
