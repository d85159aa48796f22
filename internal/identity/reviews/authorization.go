package reviews

import (
	"cmp"
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func (c Config) access(ctx context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	r.Status = c.decide(ctx, subject(r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return r, nil
}

func (c Config) localAccess(
	ctx context.Context,
	r *authorizationv1.LocalSubjectAccessReview,
) (*authorizationv1.LocalSubjectAccessReview, error) {
	r.Status = c.decide(ctx, subject(r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return r, nil
}

func (c Config) selfAccess(
	ctx context.Context,
	r *authorizationv1.SelfSubjectAccessReview,
) (*authorizationv1.SelfSubjectAccessReview, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	r.Status = c.decide(ctx, who, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return r, nil
}

func subject(spec authorizationv1.SubjectAccessReviewSpec) user.Info {
	who := &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID}
	if spec.Extra != nil {
		who.Extra = make(map[string][]string, len(spec.Extra))
		for key, values := range spec.Extra {
			who.Extra[key] = values
		}
	}
	return who
}

// decide asks the authorizer. Exactly one of resource and path is set.
func (c Config) decide(
	ctx context.Context,
	who user.Info,
	resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes,
) authorizationv1.SubjectAccessReviewStatus {
	var attributes authorizer.AttributesRecord
	if resource != nil {
		attributes = resourceAttributes(who, resource)
	} else {
		attributes = authorizer.AttributesRecord{User: who, Verb: path.Verb, Path: path.Path}
	}
	decision, reason, err := c.Authorizer.Authorize(ctx, attributes)
	var problems []string
	if err != nil {
		problems = append(problems, err.Error())
	}
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed:         decision == authorizer.DecisionAllow,
		Denied:          decision == authorizer.DecisionDeny,
		Reason:          reason,
		EvaluationError: strings.Join(append(problems, ignoredSelectors(attributes)...), "; "),
	}
}

func resourceAttributes(who user.Info, r *authorizationv1.ResourceAttributes) authorizer.AttributesRecord {
	attributes := authorizer.AttributesRecord{
		User:            who,
		Verb:            r.Verb,
		Namespace:       r.Namespace,
		APIGroup:        r.Group,
		APIVersion:      cmp.Or(r.Version, "*"),
		Resource:        r.Resource,
		Subresource:     r.Subresource,
		Name:            r.Name,
		ResourceRequest: true,
	}
	if r.LabelSelector != nil {
		attributes.LabelSelectorRequirements, attributes.LabelSelectorParsingErr = labelRequirements(r.LabelSelector)
	}
	if r.FieldSelector != nil {
		attributes.FieldSelectorRequirements, attributes.FieldSelectorParsingErr = fieldRequirements(r.FieldSelector)
	}
	return attributes
}

func checkRules(_ context.Context, r *authorizationv1.SelfSubjectRulesReview) error {
	if r.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	return nil
}

// rules lists the rights of the caller in a namespace.
func (c Config) rules(ctx context.Context, r *authorizationv1.SelfSubjectRulesReview) (*authorizationv1.SelfSubjectRulesReview, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	resources, paths, incomplete, err := c.Rules.RulesFor(ctx, who, r.Spec.Namespace)
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    make([]authorizationv1.ResourceRule, 0, len(resources)),
		NonResourceRules: make([]authorizationv1.NonResourceRule, 0, len(paths)),
		Incomplete:       incomplete,
	}
	for _, rule := range resources {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range paths {
		status.NonResourceRules = append(
			status.NonResourceRules,
			authorizationv1.NonResourceRule{Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs()},
		)
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	// Like kube-apiserver, repeat neither the spec nor the metadata.
	return &authorizationv1.SelfSubjectRulesReview{Status: status}, nil
}

func checkNamespace(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) error {
	switch namespace := request.NamespaceValue(ctx); {
	case namespace == "":
		return apierrors.NewBadRequest("namespace is required on this type: ")
	case namespace != r.Namespace:
		return apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + namespace)
	}
	return nil
}
