package rbac

import rbacv1 "k8s.io/api/rbac/v1"

// SetDefaultsRoleBinding fills in the API groups of the role reference and the subjects.
func SetDefaultsRoleBinding(b *rbacv1.RoleBinding) { setDefaults(&b.RoleRef, b.Subjects) }

// SetDefaultsClusterRoleBinding fills in the API groups of the role reference and the subjects.
func SetDefaultsClusterRoleBinding(b *rbacv1.ClusterRoleBinding) { setDefaults(&b.RoleRef, b.Subjects) }

func setDefaults(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		s := &subjects[i]
		if s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}
