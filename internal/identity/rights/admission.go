package rights

import (
	"context"
	"errors"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/annexapi/annex/internal/identity/rbac"
)

// Admission rejects writes with which callers would grant rights that they do not have. The authorizer can allow such
// writes by the verbs escalate and bind.
func (k *Keeper) Admission(a authorizer.Authorizer) admission.ValidationInterface {
	return escalation{k, a}
}

type escalation struct {
	keeper     *Keeper
	authorizer authorizer.Authorizer
}

func (escalation) Handles(operation admission.Operation) bool { return operation != admission.Connect }

// Validate implements admission.ValidationInterface.
func (e escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != rbacv1.GroupName {
		return nil
	}
	if a.GetOperation() != admission.Create && e.endsAdministration(a) {
		warning.AddWarning(ctx, "", wayBack)
	}
	if a.GetOperation() == admission.Delete {
		return nil
	}
	if old := a.GetOldObject(); old != nil && rbac.OnlyOwnersChange(a.GetObject(), old) {
		return nil
	}
	err := e.check(ctx, a)
	if escalates := (*rbac.EscalationError)(nil); errors.As(err, &escalates) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), err)
	}
	return err
}

// wayBack is the warning for callers that remove their own administrator rights.
const wayBack = "this change removes your last binding with full permissions; to restore it, use the kubeconfig in the server's data " +
	"directory, which belongs to the group system:masters and needs no binding"

// endsAdministration reports whether the caller removes its own last binding, or the role of that binding, that lets
// it do everything.
func (e escalation) endsAdministration(a admission.Attributes) bool {
	caller := a.GetUserInfo()
	if a.IsDryRun() || slices.Contains(caller.GetGroups(), user.SystemPrivilegedGroup) {
		return false
	}
	var name string
	var gone func(binding, role string) bool
	switch old := a.GetOldObject().(type) {
	case *rbacv1.ClusterRoleBinding:
		name, gone = old.Name, func(binding, _ string) bool { return binding == name }
	case *rbacv1.ClusterRole:
		name, gone = old.Name, func(_, role string) bool { return role == name }
	default:
		return false
	}
	before := e.keeper.policy.Administrator(caller)
	for binding, role := range before {
		if !gone(binding, role) {
			return false
		}
	}
	if len(before) == 0 {
		return false
	}
	after := rbac.NewPolicy()
	switch now := a.GetObject().(type) {
	case *rbacv1.ClusterRoleBinding:
		after.SetRole("", before[name], allRights)
		after.SetBinding("", name, now.RoleRef, now.Subjects)
	case *rbacv1.ClusterRole:
		after.SetRole("", name, now.Rules)
		after.SetBinding("", name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			[]rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: caller.GetName()}})
	}
	return len(after.Administrator(caller)) == 0
}

var allRights = []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}

func (e escalation) check(ctx context.Context, a admission.Attributes) error {
	role := rbac.RoleWrite{User: a.GetUserInfo(), Namespace: a.GetNamespace()}
	if info, ok := request.RequestInfoFrom(ctx); ok {
		role.Name = info.Name
	}
	switch obj := a.GetObject().(type) {
	case *rbacv1.Role:
		role.Rules = obj.Rules
		return e.keeper.policy.CheckRole(ctx, e.authorizer, role)
	case *rbacv1.ClusterRole:
		old, _ := a.GetOldObject().(*rbacv1.ClusterRole)
		role.Rules, role.Aggregates = obj.Rules, aggregates(obj) || old != nil && aggregates(old)
		return e.keeper.policy.CheckRole(ctx, e.authorizer, role)
	case *rbacv1.RoleBinding:
		return e.checkBinding(ctx, a, obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return e.checkBinding(ctx, a, obj.RoleRef)
	}
	return nil
}

func (e escalation) checkBinding(ctx context.Context, a admission.Attributes, ref rbacv1.RoleRef) error {
	return e.keeper.policy.CheckBinding(ctx, e.authorizer, rbac.BindingWrite{
		User: a.GetUserInfo(), Namespace: a.GetNamespace(), RoleRef: ref,
		Rules: func(ctx context.Context) ([]rbacv1.PolicyRule, error) {
			return e.keeper.rulesOf(ctx, a.GetNamespace(), ref)
		},
	})
}

func aggregates(role *rbacv1.ClusterRole) bool {
	return role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}
