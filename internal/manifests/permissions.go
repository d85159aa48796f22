package manifests

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/cluster"
)

// needs are what the server reads of its cluster and asks of it.
func (c *Config) needs() []cluster.Requirement {
	return cluster.Requirements(cluster.Options{DisableAdmissionPlugins: c.DisablePlugins, DisablePriorityAndFairness: c.WithoutFlowControl}, "")
}

func (c *Config) namespace() runtime.Object {
	namespace := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	// The label says that this server made it, and so may take it away.
	namespace.Name, namespace.Labels = c.Namespace, map[string]string{
		nameLabel:                            c.Name,
		"pod-security.kubernetes.io/enforce": "restricted",
	}
	return namespace
}

func (c *Config) serviceAccount() runtime.Object {
	return &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: c.meta(c.Name)}
}

// clusterRules are what a server may do in its cluster, but for what Kubernetes has a role for:
// nothing in the lean profile, which leaves out the plugins and flow control.
func (c *Config) clusterRules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, need := range c.needs() {
		if need.Binding != "" {
			continue
		}
		if n := len(rules); n > 0 && rules[n-1].APIGroups[0] == need.Group && slices.Equal(rules[n-1].Verbs, need.Verbs) {
			rules[n-1].Resources = append(rules[n-1].Resources, need.Resource)
			continue
		}
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{need.Group}, Resources: []string{need.Resource}, Verbs: need.Verbs})
	}
	if c.Certificates == SelfCertified {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{apiRegistration}, Resources: []string{"apiservices"}, ResourceNames: c.Definition.APIServiceNames(), Verbs: []string{"get", "patch"}})
	}
	return rules
}

// permissions are the roles and bindings of the service account.
func (c *Config) permissions() []runtime.Object {
	objects := []runtime.Object{
		// What the cluster's front proxy is known by is in a ConfigMap that only this role may read.
		&rbacv1.RoleBinding{TypeMeta: rbac("RoleBinding"), ObjectMeta: c.clusterMeta(metav1.NamespaceSystem, "extension-apiserver-authentication-reader"),
			RoleRef: roleRef("Role", "extension-apiserver-authentication-reader"), Subjects: c.subjects()},
		&rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: c.clusterMeta("", "system:auth-delegator"),
			RoleRef: roleRef("ClusterRole", "system:auth-delegator"), Subjects: c.subjects()},
	}
	if rules := c.clusterRules(); len(rules) > 0 {
		role := &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: c.clusterMeta("", "cluster"), Rules: rules}
		objects = append(objects, role, &rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: c.clusterMeta("", "cluster"),
			RoleRef: roleRef("ClusterRole", role.Name), Subjects: c.subjects()})
	}
	if rules, named := c.ownRules(); len(rules) > 0 {
		objects = append(objects, named...)
		role := &rbacv1.Role{TypeMeta: rbac("Role"), ObjectMeta: c.meta(c.Name), Rules: rules}
		objects = append(objects, role, &rbacv1.RoleBinding{TypeMeta: rbac("RoleBinding"), ObjectMeta: c.meta(c.Name),
			RoleRef: roleRef("Role", role.Name), Subjects: c.subjects()})
	}
	if c.UserRoles {
		objects = append(objects, c.userRoles()...)
	}
	return objects
}

// ownRules are what a server may do in its namespace, and the objects that the rules
// name. Those are made beforehand, for a permission to create cannot be bound to a name.
func (c *Config) ownRules() (rules []rbacv1.PolicyRule, named []runtime.Object) {
	lease := func(name string) {
		rules = append(rules, leaseRule(name))
		named = append(named, c.lease(name))
	}
	if c.Certificates == SelfCertified {
		name := c.servingSecret()
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get", "list", "watch", "update", "patch"}})
		named = append(named, &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: c.meta(name), Type: corev1.SecretTypeOpaque})
		lease(name)
		// Whether the server is wanted any more.
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{c.workloadResource()}, ResourceNames: []string{c.Name}, Verbs: []string{"get"}})
	}
	if len(c.Definition.Controllers) > 0 && !c.SeparateControllers {
		lease(c.Definition.Name + "-controllers")
	}
	return rules, named
}

func leaseRule(name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{name}, Verbs: []string{"get", "update", "patch"}}
}

func (c *Config) lease(name string) runtime.Object {
	return &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: c.meta(name)}
}

// userRoles add the kinds to what the cluster's roles of the same names aggregate.
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
				// What is outside namespaces is the administrators' of the cluster, and so is
				// whatever a custom subresource does.
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

func (c *Config) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: c.Name, Namespace: c.Namespace}}
}

func rbac(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}
