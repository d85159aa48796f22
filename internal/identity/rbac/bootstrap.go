package rbac

import rbacv1 "k8s.io/api/rbac/v1"

// BootstrapObjects are the roles and bindings that kube-apiserver 1.37 creates at its start.
type BootstrapObjects struct {
	// ClusterRoles that are aggregated have no rules of their own.
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Bootstrap returns the roles and bindings that kube-apiserver creates at its start, sorted by namespace and name.
// Each call returns new objects, which belong to the caller.
func Bootstrap() *BootstrapObjects { return bootstrapObjects() }
