package rbac

import rbacv1 "k8s.io/api/rbac/v1"

// BootstrapObjects are the roles and bindings that kube-apiserver 1.37 has at its start.
type BootstrapObjects struct {
	// ClusterRoles have no rules of their own if they are aggregated.
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Bootstrap returns the roles and bindings that kube-apiserver has at its start, sorted by
// namespace and name. They are new for each call.
func Bootstrap() *BootstrapObjects { return bootstrapObjects() }
