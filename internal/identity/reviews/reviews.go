// Package reviews implements the APIs that report the identity and the rights of a caller, as kube-apiserver does in
// the groups authentication.k8s.io and authorization.k8s.io. A review is answered by its create request and not
// stored.
package reviews

import (
	"context"
	"maps"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/facts/authentication"
	"github.com/annexapi/annex/internal/model/facts/authorization"
)

var groups = []struct {
	facts func() api.Facts
	kinds []runtime.Object
}{
	{authentication.API, []runtime.Object{&authenticationv1.TokenReview{}, &authenticationv1.SelfSubjectReview{}}},
	{authorization.API, []runtime.Object{
		&authorizationv1.SubjectAccessReview{}, &authorizationv1.LocalSubjectAccessReview{},
		&authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SelfSubjectRulesReview{},
	}},
}

// AddToScheme registers the types of reviews. With aliases, they also stand for the internal versions of their
// groups.
func AddToScheme(scheme *runtime.Scheme, aliases bool) error {
	for _, g := range groups {
		facts := g.facts()
		if err := facts.AddToScheme(scheme); err != nil {
			return err
		}
		if aliases {
			scheme.AddKnownTypes(schema.GroupVersion{Group: facts.GroupVersion.Group, Version: runtime.APIVersionInternal}, g.kinds...)
		}
	}
	return nil
}

// OpenAPI returns the definitions of the types of reviews.
func OpenAPI(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := map[string]common.OpenAPIDefinition{}
	for _, g := range groups {
		maps.Copy(all, g.facts().OpenAPI(ref))
	}
	return all
}

// Config holds the authenticator and authorizer that answer reviews.
type Config struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Rules lists the rights of a caller in a namespace.
	Rules authorizer.RuleResolver
}

// Storage returns the endpoints of both groups, by their resources.
func Storage(c Config) map[schema.GroupVersion]map[string]rest.Storage {
	return map[schema.GroupVersion]map[string]rest.Storage{
		authenticationv1.SchemeGroupVersion: {
			"tokenreviews": &review[authenticationv1.TokenReview, *authenticationv1.TokenReview]{
				singular: "tokenreview",
				check:    checkToken,
				answer:   c.token,
			},
			"selfsubjectreviews": &review[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview]{
				singular: "selfsubjectreview",
				answer:   self,
			},
		},
		authorizationv1.SchemeGroupVersion: {
			"subjectaccessreviews": &review[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview]{
				singular: "subjectaccessreview", check: checkAccess, answer: c.access,
			},
			"localsubjectaccessreviews": &review[authorizationv1.LocalSubjectAccessReview, *authorizationv1.LocalSubjectAccessReview]{
				singular: "localsubjectaccessreview", namespaced: true, check: checkLocalAccess, answer: c.localAccess,
			},
			"selfsubjectaccessreviews": &review[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview]{
				singular: "selfsubjectaccessreview", check: checkSelfAccess, answer: c.selfAccess,
			},
			"selfsubjectrulesreviews": &review[authorizationv1.SelfSubjectRulesReview, *authorizationv1.SelfSubjectRulesReview]{
				singular: "selfsubjectrulesreview", check: checkRules, answer: c.rules,
			},
		},
	}
}

// object is a pointer to T that is an API object.
type object[T any] interface {
	*T
	runtime.Object
}

// review is the endpoint of one kind of review.
type review[T any, PT object[T]] struct {
	singular   string
	namespaced bool
	// check returns the errors of the question; nil accepts all questions.
	check func(ctx context.Context, question *T) error
	// answer returns the response object, which may be the question itself.
	answer func(ctx context.Context, question *T) (*T, error)
}

var (
	_ rest.Creater              = (*review[authenticationv1.TokenReview, *authenticationv1.TokenReview])(nil)
	_ rest.Scoper               = (*review[authenticationv1.TokenReview, *authenticationv1.TokenReview])(nil)
	_ rest.SingularNameProvider = (*review[authenticationv1.TokenReview, *authenticationv1.TokenReview])(nil)
)

func (r *review[T, PT]) New() runtime.Object     { return PT(new(T)) }
func (r *review[T, PT]) Destroy()                {}
func (r *review[T, PT]) NamespaceScoped() bool   { return r.namespaced }
func (r *review[T, PT]) GetSingularName() string { return r.singular }

// Create answers the review.
func (r *review[T, PT]) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions,
) (runtime.Object, error) {
	question := (*T)(obj.(PT))
	if r.check != nil {
		if err := r.check(ctx, question); err != nil {
			return nil, err
		}
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	answer, err := r.answer(ctx, question)
	if err != nil {
		return nil, err
	}
	return PT(answer), nil
}
