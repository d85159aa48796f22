// Package rights stores and serves the roles and bindings of a standalone server, as kinds of
// rbac.authorization.k8s.io.
//
// It admits writes of them, creates the roles that every server has, maintains aggregated roles, and updates the
// policy of package rbac, which decides, with every change.
package rights

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	facts "github.com/annexapi/annex/internal/model/facts/rbac"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/model/define"
)

// Group returns the API group of roles and bindings.
func Group() define.Group {
	return define.Group{Name: rbacv1.GroupName, Kinds: []*define.Kind{
		kind[rbacv1.ClusterRole, rbacv1.ClusterRoleList](
			"clusterroles",
			role(rbac.ValidateClusterRole, rbac.ValidateClusterRoleUpdate),
			clusterScoped,
		),
		kind[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList]("clusterrolebindings", binding(
			"clusterRoleBinding", rbacv1.ClusterRoleBinding{}.SwaggerDoc(),
			rbac.SetDefaultsClusterRoleBinding, rbac.ValidateClusterRoleBinding, rbac.ValidateClusterRoleBindingUpdate,
			func(b *rbacv1.ClusterRoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) { return b.RoleRef, b.Subjects },
		), clusterScoped),
		kind[rbacv1.Role, rbacv1.RoleList]("roles", role(rbac.ValidateRole, rbac.ValidateRoleUpdate)),
		kind[rbacv1.RoleBinding, rbacv1.RoleBindingList]("rolebindings", binding(
			"roleBinding", rbacv1.RoleBinding{}.SwaggerDoc(),
			rbac.SetDefaultsRoleBinding, rbac.ValidateRoleBinding, rbac.ValidateRoleBindingUpdate,
			func(b *rbacv1.RoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) { return b.RoleRef, b.Subjects },
		)),
	}}
}

func kind[T, L any](resource string, say ...func(*define.Kind)) *define.Kind {
	k := &define.Kind{
		Resource:          resource,
		Versions:          []*define.Version{{Facts: facts.API, Type: reflect.TypeFor[T](), ListType: reflect.TypeFor[L]()}},
		ValidateName:      rbac.ValidateName,
		WithoutGeneration: true,
		WithoutAge:        true,
		CreateOnUpdate:    true,
		Unconditional:     true,
	}
	for _, s := range say {
		s(k)
	}
	return k
}

func clusterScoped(k *define.Kind) { k.ClusterScoped = true }

// role adds a column with the creation time, as in upstream's tables of kinds without columns.
func role[T any](validate func(*T) field.ErrorList, update func(obj, old *T) field.ErrorList) func(*define.Kind) {
	return func(k *define.Kind) {
		validated(k, validate, update)
		k.Columns = []define.Column{
			{
				Name:        "Created At",
				Type:        "date",
				Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
				Value: func(obj runtime.Object) any {
					return created(obj).UTC().Format(time.RFC3339)
				},
			},
		}
	}
}

// binding adds the columns of upstream's tables. name is the kind in their descriptions.
func binding[T any](
	name string,
	documented map[string]string,
	fill func(*T),
	validate func(*T) field.ErrorList,
	update func(obj, old *T) field.ErrorList,
	of func(*T) (rbacv1.RoleRef, []rbacv1.Subject),
) func(*define.Kind) {
	subjects := func(title, kind string) define.Column {
		return define.Column{Name: title, Type: "string", Description: title + " in the " + name, Wide: true, Value: func(obj runtime.Object) any {
			_, all := of(any(obj).(*T))
			var names []string
			for _, s := range all {
				switch {
				case s.Kind != kind:
				case kind == rbacv1.ServiceAccountKind:
					names = append(names, s.Namespace+"/"+s.Name)
				default:
					names = append(names, s.Name)
				}
			}
			return strings.Join(names, ", ")
		}}
	}
	// Upstream's tables have the text of an older version.
	reference := strings.TrimSuffix(documented["roleRef"], " This field is immutable.")
	return func(k *define.Kind) {
		validated(k, validate, update)
		k.Versions[0].Default = func(obj runtime.Object) { fill(any(obj).(*T)) }
		k.Columns = []define.Column{
			{Name: "Role", Type: "string", Description: reference, Value: func(obj runtime.Object) any {
				ref, _ := of(any(obj).(*T))
				return ref.Kind + "/" + ref.Name
			}},
			{
				Name:        "Age",
				Type:        "string",
				Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
				Value:       func(obj runtime.Object) any { return created(obj) },
			},
			subjects("Users", rbacv1.UserKind),
			subjects("Groups", rbacv1.GroupKind),
			subjects("ServiceAccounts", rbacv1.ServiceAccountKind),
		}
	}
}

func validated[T any](k *define.Kind, validate func(*T) field.ErrorList, update func(obj, old *T) field.ErrorList) {
	k.Validate = func(_ context.Context, obj runtime.Object) field.ErrorList {
		// kube-apiserver validates the finalizers of these kinds like those of the core group.
		return append(objects.ValidateFinalizers(objects.Meta(obj).GetFinalizers()), withoutMetadata(validate(any(obj).(*T)))...)
	}
	// Validate runs on updates as well, so only the errors that concern the change are returned here.
	k.ValidateUpdate = func(_ context.Context, obj, old runtime.Object) field.ErrorList {
		said := validate(any(obj).(*T))
		return slices.DeleteFunc(withoutMetadata(update(any(obj).(*T), any(old).(*T))), func(e *field.Error) bool {
			return slices.ContainsFunc(said, func(other *field.Error) bool { return e.Error() == other.Error() })
		})
	}
}

// withoutMetadata removes metadata errors, which the registry reports for all kinds.
func withoutMetadata(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool { return strings.HasPrefix(e.Field, "metadata") })
}

func created(obj runtime.Object) metav1.Time { return obj.(metav1.Object).GetCreationTimestamp() }
