package policies

import (
	"context"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/model/admit"
)

// Params returns the plugin that rejects policies and bindings whose parameters the writer may not read: a policy
// reveals its parameters, if only by its refusals. As in kube-apiserver, members of system:masters may write all of
// them, and a write that does not change the parameters is not checked again.
func (p *Policies) Params() admit.Plugin {
	return admit.NewPlugin("PolicyParameters", params{admission.NewHandler(admission.Create, admission.Update), p})
}

type params struct {
	*admission.Handler
	policies *Policies
}

var _ admission.ValidationInterface = params{}

// Validate implements admission.ValidationInterface.
func (p params) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != admissionregistrationv1.GroupName || a.GetSubresource() != "" ||
		slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	var err error
	var where *field.Path
	if kind := paramKindOf(a.GetObject()); kind != nil {
		if old := paramKindOf(a.GetOldObject()); old != nil && *old == *kind {
			return nil
		}
		where, err = field.NewPath("spec", "paramKind"), p.checkKind(ctx, a.GetUserInfo(), *kind)
	} else if now := bindingOf(a.GetObject()); now.params != nil {
		if old := bindingOf(a.GetOldObject()); old.params != nil && *old.params == *now.params && old.policy == now.policy {
			return nil
		}
		where, err = field.NewPath("spec", "paramRef"), p.checkBinding(ctx, a.GetUserInfo(), now)
	}
	if err != nil {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Forbidden(where, err.Error())})
	}
	return nil
}

// paramKindOf returns the kind of a policy's parameters. It returns nil for other objects, and for policies without
// parameters.
func paramKindOf(obj runtime.Object) *admissionregistrationv1.ParamKind {
	switch policy := obj.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return policy.Spec.ParamKind
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return policy.Spec.ParamKind
	}
	return nil
}

// binding contains the fields that determine the parameters of a binding.
type binding struct {
	policy string
	params *admissionregistrationv1.ParamRef
	// kind returns the kind of the parameters; nil if the policy has none.
	kind func(ctx context.Context, p *Policies) (*admissionregistrationv1.ParamKind, error)
}

// bindingOf returns an empty binding, without parameters, for other objects.
func bindingOf(obj runtime.Object) binding {
	switch b := obj.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		return binding{b.Spec.PolicyName, b.Spec.ParamRef, func(ctx context.Context, p *Policies) (*admissionregistrationv1.ParamKind, error) {
			policy, err := p.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, b.Spec.PolicyName, metav1.GetOptions{})
			return paramKindOf(policy), err
		}}
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		return binding{b.Spec.PolicyName, b.Spec.ParamRef, func(ctx context.Context, p *Policies) (*admissionregistrationv1.ParamKind, error) {
			policy, err := p.client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(ctx, b.Spec.PolicyName, metav1.GetOptions{})
			return paramKindOf(policy), err
		}}
	}
	return binding{}
}

// resolve returns the resource of a kind. Parts that are not known are *, which stands for all.
func (p params) resolve(kind admissionregistrationv1.ParamKind) (resource schema.GroupVersionResource, invalid, unknown error) {
	all := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return all, err, nil
	}
	all.Group, all.Version = gv.Group, gv.Version
	mapping, err := p.policies.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: kind.Kind}, gv.Version)
	if err != nil {
		return all, nil, err
	}
	all.Resource = mapping.Resource.Resource
	return all, nil, nil
}

func (p params) may(
	ctx context.Context,
	caller user.Info,
	verb string,
	resource schema.GroupVersionResource,
	namespace, name string,
) (bool, error) {
	decision, _, err := p.policies.config.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: caller, Verb: verb, ResourceRequest: true, Namespace: namespace, Name: name,
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
	})
	return decision == authorizer.DecisionAllow, err
}

func (p params) checkKind(ctx context.Context, caller user.Info, kind admissionregistrationv1.ParamKind) error {
	resource, _, _ := p.resolve(kind)
	allowed, err := p.may(ctx, caller, "get", resource, "*", "*")
	if err == nil && !allowed {
		err = fmt.Errorf(
			`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`,
			caller,
			kind.Kind,
			kind.APIVersion,
		)
	}
	return err
}

func (p params) checkBinding(ctx context.Context, caller user.Info, b binding) error {
	resource := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	var invalid, unknown error
	kind, missing := b.kind(ctx, p.policies)
	if missing == nil && kind != nil {
		resource, invalid, unknown = p.resolve(*kind)
	}
	verb := "get"
	if b.params.Name == "" {
		verb = "list" // all that a selector matches
	}
	allowed, err := p.may(ctx, caller, verb, resource, b.params.Namespace, b.params.Name)
	const everything = `and user %v does not have %q permission for all groups, versions and resources`
	switch {
	case err != nil:
		return fmt.Errorf("failed to authorize request: %w", err)
	case allowed:
		return nil
	case missing != nil:
		return fmt.Errorf("unable to get policy %s to determine minimum required permissions "+everything, b.policy, caller, verb)
	case invalid != nil:
		return fmt.Errorf("unable to parse paramKind %v to determine minimum required permissions "+everything, kind, caller, verb)
	case unknown != nil:
		return fmt.Errorf("unable to resolve paramKind %v to determine minimum required permissions "+everything, kind, caller, verb)
	}
	return fmt.Errorf(`user %v does not have %q permission on the object referenced by paramRef`, caller, verb)
}
