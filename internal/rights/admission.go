package rights

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/rbac"
)

// Admission refuses writes by which callers would give away rights that they do not have
// themselves. The authorizer is asked who may all the same, by the verbs escalate and bind.
func (k *Keeper) Admission(a authorizer.Authorizer) admission.ValidationInterface {
	return escalation{k, a}
}

type escalation struct {
	keeper     *Keeper
	authorizer authorizer.Authorizer
}

func (escalation) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Validate implements admission.ValidationInterface.
func (e escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != rbacv1.GroupName {
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
