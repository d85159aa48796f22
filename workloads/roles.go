package workloads

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Roles implements definition.Extension. They are those that a kube-apiserver with the same feature gates creates. Charts of
// schedulers and drivers bind to them by name.
func (extension) Roles() []runtime.Object {
	var all []runtime.Object
	for _, role := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		all = append(all, &role)
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		all = append(all, &binding)
	}
	// All servers of the process get the same objects of namespaces.
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			all = append(all, role.DeepCopy())
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			all = append(all, binding.DeepCopy())
		}
	}
	return all
}
