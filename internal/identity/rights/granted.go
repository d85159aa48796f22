package rights

import (
	"cmp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/model/define"
)

// The label bootstrapping with the value declared marks roles that kinds have declared. kube-apiserver labels its own
// default roles with the same key.
const (
	bootstrapping = "kubernetes.io/bootstrapping"
	declared      = "kind-roles"
)

// granted returns the ClusterRoles that add the rights on the kinds of a definition to the roles that the kinds name:
// one for each group and role.
func granted(definition *define.Server) []*rbacv1.ClusterRole {
	var roles []*rbacv1.ClusterRole
	for _, g := range definition.Groups {
		rules := map[string][]rbacv1.PolicyRule{}
		var names []string
		for _, k := range g.Kinds {
			for _, grant := range k.Granted() {
				if rules[grant.Role] == nil {
					names = append(names, grant.Role)
				}
				resource := k.Resource
				if grant.Subresource != "" {
					resource += "/" + grant.Subresource
				}
				rules[grant.Role] = add(
					rules[grant.Role],
					rbacv1.PolicyRule{APIGroups: []string{g.Name}, Resources: []string{resource}, Verbs: grant.Verbs},
				)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			roles = append(roles, clusterRole(g.Name, name, rules[name]))
		}
	}
	return roles
}

// add adds a rule. It extends a rule with the same verbs if there is one.
func add(rules []rbacv1.PolicyRule, rule rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for i := range rules {
		if slices.Equal(rules[i].Verbs, rule.Verbs) {
			rules[i].Resources = append(rules[i].Resources, rule.Resources...)
			return rules
		}
	}
	return append(rules, rule)
}

// clusterRole returns a ClusterRole that is aggregated into role if role is view, edit or admin.
func clusterRole(group, role string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
	group = cmp.Or(group, "core")
	r := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name:        strings.Join([]string{group, role}, ":"),
			Labels:      map[string]string{bootstrapping: declared},
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		},
		Rules: rules,
	}
	if role == define.ViewRole || role == define.EditRole || role == define.AdminRole {
		r.Name = group + ":aggregate-to-" + role
		r.Labels[rbacv1.GroupName+"/aggregate-to-"+role] = "true"
	}
	return r
}
