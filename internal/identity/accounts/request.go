package accounts

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/token/jwt"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"
)

// kube-apiserver's default and limits of the requested lifetime, in seconds.
const (
	defaultSeconds = 60 * 60
	minSeconds     = 10 * 60
	maxSeconds     = 1 << 32
)

var tokenRequest = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// Requests serves token requests at serviceaccounts/NAME/token.
type Requests struct{ tokens *Tokens }

// Requests returns the endpoint of token requests.
func (t *Tokens) Requests() *Requests { return &Requests{t} }

var (
	_ rest.NamedCreater                   = (*Requests)(nil)
	_ rest.GroupVersionKindProvider       = (*Requests)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Requests)(nil)
)

// New implements rest.Storage.
func (*Requests) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy does nothing: the storage belongs to the main endpoint.
func (*Requests) Destroy() {}

// GroupVersionKind returns TokenRequest, which belongs to another group than service accounts.
func (*Requests) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return tokenRequest }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate lets a request contain the UID of its account.
func (*Requests) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create issues a token. A dry run issues none.
func (r *Requests) Create(
	ctx context.Context,
	name string,
	obj runtime.Object,
	admitted rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	asked := obj.(*authenticationv1.TokenRequest)
	namespace := request.NamespaceValue(ctx)
	if err := checkPlace(asked, namespace, name); err != nil {
		return nil, err
	}
	found, err := r.tokens.accounts.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	account := found.(*corev1.ServiceAccount)
	if asked.UID != "" && asked.UID != account.UID {
		return nil, conflict(
			tokenRequest.GroupKind(),
			name,
			fmt.Errorf("the UID in the request (%s) is not that of the service account (%s)", asked.UID, account.UID),
		)
	}
	now := r.tokens.options.Clock.Now()
	asked.Name, asked.Namespace, asked.UID, asked.CreationTimestamp = account.Name, account.Namespace, account.UID, metav1.NewTime(now)
	asked.Status = authenticationv1.TokenRequestStatus{}
	r.fill(&asked.Spec)
	if errs := validate(&asked.Spec); len(errs) > 0 {
		return nil, apierrors.NewInvalid(tokenRequest.GroupKind(), "", errs) // the empty name is that of kube-apiserver's errors
	}
	if admitted != nil {
		if err := admitted(ctx, asked.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	bound, err := r.bind(ctx, namespace, asked.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	r.shorten(ctx, &asked.Spec)
	if dryrun.IsDryRun(options.DryRun) {
		return asked, nil
	}
	lifetime := time.Duration(*asked.Spec.ExpirationSeconds) * time.Second
	token, id, err := r.tokens.issue(account, now, lifetime, asked.Spec.Audiences, bound)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("issue a token: %w", err))
	}
	asked.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(now.Add(lifetime))}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, jwt.CredentialIDForJTI(id))
	return asked, nil
}

// checkPlace reports an error if the request names another account than its path.
func checkPlace(asked *authenticationv1.TokenRequest, namespace, name string) error {
	metadata := field.NewPath("metadata")
	var errs field.ErrorList
	if asked.Name != "" && asked.Name != name {
		errs = append(errs, field.Invalid(metadata.Child("name"), asked.Name, "must match the service account name if specified"))
	}
	if asked.Namespace != "" && asked.Namespace != namespace {
		errs = append(errs, field.Invalid(metadata.Child("namespace"), asked.Namespace, "must match the service account namespace if specified"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequest.GroupKind(), name, errs)
	}
	return nil
}

func conflict(kind schema.GroupKind, name string, err error) error {
	return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name, err)
}

// fill sets the defaults of omitted fields.
func (r *Requests) fill(spec *authenticationv1.TokenRequestSpec) {
	if len(spec.Audiences) == 0 {
		spec.Audiences = slices.Clone(r.tokens.options.Audiences)
	}
	if spec.ExpirationSeconds == nil {
		spec.ExpirationSeconds = new(int64)
		*spec.ExpirationSeconds = defaultSeconds
	}
}

func validate(spec *authenticationv1.TokenRequestSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	switch asked := *spec.ExpirationSeconds; {
	case asked < minSeconds:
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), asked, "may not specify a duration less than 10 minutes"))
	case asked > maxSeconds:
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), asked, "may not specify a duration larger than 2^32 seconds"))
	}
	if len(spec.Attestations) > 0 {
		errs = append(
			errs,
			field.Invalid(
				path.Child("attestations"),
				spec.Attestations,
				"attestations may only be specified with a webhook bound object reference",
			),
		)
	}
	return errs
}

// bind finds the object that a token is to be bound to, and its UID.
func (r *Requests) bind(ctx context.Context, namespace string, ref *authenticationv1.BoundObjectReference) (*objectReference, error) {
	if ref == nil {
		return nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	kind, ok := r.tokens.kinds(gvk)
	if !ok {
		return nil, apierrors.NewBadRequest(
			fmt.Sprintf("cannot bind token to object of type %s: use a namespaced kind that this server serves", gvk),
		)
	}
	if ref.Name == "" {
		return nil, apierrors.NewBadRequest("cannot bind token to an object without a name")
	}
	m, err := get(ctx, kind, namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	if ref.UID != "" && ref.UID != m.GetUID() {
		return nil, conflict(gvk.GroupKind(), ref.Name, fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in "+
			"record. The object might have been deleted and then recreated", ref.UID))
	}
	return &objectReference{gvk.GroupVersion().String(), gvk.Kind, reference{ref.Name, m.GetUID()}}, nil
}

// shorten limits the lifetime to the maximum of the options, with a warning.
func (r *Requests) shorten(ctx context.Context, spec *authenticationv1.TokenRequestSpec) {
	longest := int64(r.tokens.options.MaxExpiration / time.Second)
	if asked := *spec.ExpirationSeconds; longest > 0 && asked > longest {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", asked, longest))
		*spec.ExpirationSeconds = longest
	}
}
