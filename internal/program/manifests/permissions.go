package manifests

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

func (c *Config) namespace() runtime.Object {
	namespace := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	// The label marks the namespace as created by this server, so that it may be deleted with it.
	namespace.Name, namespace.Labels = c.Namespace, map[string]string{
		nameLabel:                            c.Name,
		"pod-security.kubernetes.io/enforce": "restricted",
	}
	return namespace
}

func (c *Config) serviceAccount() runtime.Object {
	return &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: c.meta(c.Name)}
}

// rules returns the rules that grant the requirements in a namespace, or outside of all namespaces, without those
// for which Kubernetes has a role.
func rules(of []requirements.Requirement, namespace string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, n := range of {
		if n.Binding != (requirements.Role{}) || n.Namespace != namespace {
			continue
		}
		rule := rbacv1.PolicyRule{APIGroups: []string{n.Group}, Resources: []string{n.Resource}, Verbs: n.Verbs}
		if n.Name != "" {
			rule.ResourceNames = []string{n.Name}
		}
		if i := len(rules) - 1; i < 0 || !join(&rules[i], rule) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// join merges a rule into another with the same verbs, if that grants no other permission.
func join(to *rbacv1.PolicyRule, rule rbacv1.PolicyRule) bool {
	switch {
	case to.APIGroups[0] != rule.APIGroups[0] || !slices.Equal(to.Verbs, rule.Verbs):
		return false
	case to.ResourceNames == nil && rule.ResourceNames == nil:
		to.Resources = append(to.Resources, rule.Resources...)
		return true
	case to.ResourceNames != nil && rule.ResourceNames != nil && slices.Equal(to.Resources, rule.Resources):
		to.ResourceNames = append(to.ResourceNames, rule.ResourceNames...)
		return true
	}
	return false
}

// permissions returns the roles and bindings of the service account.
func (c *Config) permissions() []runtime.Object {
	required, _ := c.plan.Requirements()
	var objects []runtime.Object
	var bound []requirements.Role
	for _, n := range required {
		if to := n.Binding; to != (requirements.Role{}) && !slices.Contains(bound, to) {
			bound = append(bound, to)
			objects = append(objects, c.binding(c.clusterMeta(to.Namespace, to.Name), to.Kind(), to.Name, c.Name))
		}
	}
	if rules := rules(required, ""); len(rules) > 0 {
		role := &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: c.clusterMeta("", "cluster"), Rules: rules}
		objects = append(objects, role, c.binding(c.clusterMeta("", "cluster"), "ClusterRole", role.Name, c.Name))
	}
	if rules := rules(required, c.Namespace); len(rules) > 0 {
		// Create the objects that the rules name in advance: a permission to create cannot be restricted to a name.
		for _, n := range required {
			switch {
			case n.Namespace != c.Namespace:
			case n.GroupVersionResource == requirements.Secrets:
				objects = append(
					objects,
					&corev1.Secret{
						TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
						ObjectMeta: c.meta(n.Name),
						Type:       corev1.SecretTypeOpaque,
					},
				)
			case n.GroupVersionResource == requirements.Leases:
				objects = append(objects, c.lease(n.Name))
			}
		}
		role := &rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: c.meta(c.Name), Rules: rules}
		objects = append(objects, role, c.binding(c.meta(c.Name), "Role", role.Name, c.Name))
	}
	if c.UserRoles {
		objects = append(objects, c.userRoles()...)
	}
	return objects
}

// binding binds a role to a service account: a ClusterRole in the whole cluster, a Role in its namespace.
func (c *Config) binding(meta metav1.ObjectMeta, kind, name, account string) runtime.Object {
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: c.Namespace}}
	if kind == "Role" {
		return &rbacv1.RoleBinding{TypeMeta: rbac("RoleBinding"), ObjectMeta: meta, RoleRef: role, Subjects: subjects}
	}
	return &rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: role, Subjects: subjects}
}

func (c *Config) lease(name string) runtime.Object {
	return &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: c.meta(name)}
}

// userRoles returns ClusterRoles that are aggregated into the cluster's roles of the same names.
func (c *Config) userRoles() []runtime.Object {
	var objects []runtime.Object
	for _, to := range []struct {
		role  string
		verbs []string
		adds  []string
	}{
		{"view", []string{"get", "list", "watch"}, []string{"view", "edit", "admin"}},
		{"edit", []string{"create", "update", "patch", "delete", "deletecollection"}, []string{"edit", "admin"}},
	} {
		role := &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: c.clusterMeta("", to.role)}
		for _, add := range to.adds {
			role.Labels["rbac.authorization.k8s.io/aggregate-to-"+add] = "true"
		}
		for _, g := range c.Definition.Groups {
			rule := rbacv1.PolicyRule{APIGroups: []string{g.Name}, Verbs: to.verbs}
			for _, k := range g.Kinds {
				// Cluster-scoped kinds and custom subresources remain reserved to the cluster's administrators.
				if k.ClusterScoped {
					continue
				}
				rule.Resources = append(rule.Resources, k.Resource)
				if to.role == "view" && k.Status {
					rule.Resources = append(rule.Resources, k.Resource+"/status")
				}
				if k.Scale != nil {
					rule.Resources = append(rule.Resources, k.Resource+"/scale")
				}
			}
			if len(rule.Resources) > 0 {
				role.Rules = append(role.Rules, rule)
			}
		}
		if len(role.Rules) > 0 {
			objects = append(objects, role)
		}
	}
	return objects
}

func rbac(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}
