package rbac

import (
	_ "embed"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// bootstrapObjects are what a new kube-apiserver 1.37 has: `make bootstrap-roles` asks one.
//
//go:embed bootstrap.yaml
var bootstrapObjects []byte

// BootstrapObjects are the roles and bindings that kube-apiserver has at its start.
type BootstrapObjects struct {
	// ClusterRoles have no rules of their own if they are aggregated.
	ClusterRoles        []rbacv1.ClusterRole        `json:"clusterRoles"`
	ClusterRoleBindings []rbacv1.ClusterRoleBinding `json:"clusterRoleBindings"`
	Roles               []rbacv1.Role               `json:"roles"`
	RoleBindings        []rbacv1.RoleBinding        `json:"roleBindings"`
}

// Bootstrap returns the roles and bindings that kube-apiserver has at its start, sorted by namespace and name. They are new
// for each call, which reads them in some milliseconds.
func Bootstrap() (*BootstrapObjects, error) {
	objects := &BootstrapObjects{}
	if err := yaml.UnmarshalStrict(bootstrapObjects, objects); err != nil {
		return nil, fmt.Errorf("read the bootstrap roles: %w", err)
	}
	return objects, nil
}
