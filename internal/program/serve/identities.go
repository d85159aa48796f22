package serve

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identities are whom the controllers of a control plane work as, by the tokens of the loopback. Where roles do not decide, a
// webhook that has never heard of them would have to let them work; they keep all rights then.
func (m *standalone) identities() map[string]user.Info {
	known := map[string]user.Info{}
	plane := m.plan.Definition.Plane
	if plane == nil {
		return known
	}
	add := func(name string, info *user.DefaultInfo) {
		if !m.decisions.ByRoles() {
			info.Groups = append(info.Groups, user.SystemPrivilegedGroup)
		}
		known[m.loopback.TokenOf(name)] = info
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
