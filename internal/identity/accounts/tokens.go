package accounts

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/token/jwt"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/annexapi/annex/internal/identity/credential"
	"github.com/annexapi/annex/internal/identity/jws"
)

const (
	// skew is the tolerated clock difference between the processes that sign and verify tokens.
	skew = time.Minute
	// terminating is how long an object remains valid after its deletion timestamp, as in kube-apiserver, because a
	// program may need its token to terminate gracefully.
	terminating = time.Minute
	// remembered is the number of tokens whose verified signature is cached.
	remembered = 4096
)

// Options configure NewTokens.
type Options struct {
	// Issuers are the accepted issuers, at least one. The first one is used for new tokens.
	Issuers []string
	// Audiences are the names of the server, at least one. A token has to be for one of them. They are also the
	// default audiences of requested tokens.
	Audiences []string
	// MaxExpiration bounds the lifetime of tokens; 0 means no bound.
	MaxExpiration time.Duration
	// Clock is used for validity; nil means the real clock.
	Clock clock.PassiveClock
}

// Kinds finds the kinds that the server serves and to whose objects tokens can be bound. It returns false for all other
// kinds.
type Kinds func(gvk schema.GroupVersionKind) (Kind, bool)

// Kind is the resource and storage of a kind.
type Kind struct {
	Resource schema.GroupResource
	Storage  rest.Getter
	// ClusterScoped kinds have objects outside of the account's namespace, such as nodes.
	ClusterScoped bool
}

// Tokens issues and authenticates the tokens of service accounts. Its methods may be called concurrently.
type Tokens struct {
	options  Options
	keys     *Keys
	accounts rest.Getter
	kinds    Kinds
	// cache caches the claims of tokens with a valid signature, by digest.
	cache *lru.Cache
}

var _ authenticator.Token = (*Tokens)(nil)

// NewTokens returns the tokens that are signed with keys. Accounts are read from storage each time that one of their
// tokens is used.
func NewTokens(options Options, keys *Keys, accounts rest.Getter, kinds Kinds) *Tokens {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Tokens{options, keys, accounts, kinds, lru.New(remembered)}
}

// claims are the claims of a token, with kube-apiserver's names.
type claims struct {
	Audience   audience    `json:"aud"`
	Expires    seconds     `json:"exp"`
	IssuedAt   seconds     `json:"iat"`
	Issuer     string      `json:"iss"`
	ID         string      `json:"jti"`
	Kubernetes *kubernetes `json:"kubernetes.io"`
	NotBefore  seconds     `json:"nbf"`
	Subject    string      `json:"sub"`
}

type kubernetes struct {
	Namespace string    `json:"namespace"`
	Account   reference `json:"serviceaccount"`
	// Object is the object that the token is bound to. kube-apiserver supports only some kinds, which have claims of
	// their own below. Secrets are objects like others here.
	Object *objectReference `json:"object,omitempty"`
	Pod    *reference       `json:"pod,omitempty"`
	Secret any              `json:"secret,omitempty"`
	Node   *reference       `json:"node,omitempty"`
}

// bind sets the claim of the object that a token is bound to.
func (k *kubernetes) bind(to *objectReference) {
	switch {
	case to == nil:
	case to.is(pods):
		k.Pod = &to.reference
	case to.is(nodes):
		k.Node = &to.reference
	default:
		k.Object = to
	}
}

// bound returns the object that the token is bound to, nil if there is none.
func (k *kubernetes) bound() *objectReference {
	switch {
	case k.Pod != nil:
		return &objectReference{pods.GroupVersion().String(), pods.Kind, *k.Pod}
	case k.Node != nil:
		return &objectReference{nodes.GroupVersion().String(), nodes.Kind, *k.Node}
	}
	return k.Object
}

var pods, nodes = corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Node")

func (o *objectReference) is(kind schema.GroupVersionKind) bool {
	return schema.FromAPIVersionAndKind(o.APIVersion, o.Kind) == kind
}

type reference struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

type objectReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	reference
}

// audience is a list; RFC 7519 allows a single audience to be a string.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// seconds is a Unix time. RFC 7519 allows fractions.
type seconds int64

// UnmarshalJSON implements json.Unmarshaler.
func (s *seconds) UnmarshalJSON(data []byte) error {
	var number float64
	if err := json.Unmarshal(data, &number); err != nil {
		return err
	}
	*s = seconds(number)
	return nil
}

func (s seconds) time() time.Time { return time.Unix(int64(s), 0) }

// issue signs a token for an account that is valid from now for lifetime.
func (t *Tokens) issue(
	account *corev1.ServiceAccount,
	now time.Time,
	lifetime time.Duration,
	audiences []string,
	bound *objectReference,
) (token, id string, err error) {
	id = uuid.NewString()
	content := &kubernetes{Namespace: account.Namespace, Account: reference{account.Name, account.UID}}
	content.bind(bound)
	payload, err := json.Marshal(claims{
		Audience:   audiences,
		Expires:    seconds(now.Add(lifetime).Unix()),
		IssuedAt:   seconds(now.Unix()),
		NotBefore:  seconds(now.Unix()),
		Issuer:     t.options.Issuers[0],
		ID:         id,
		Subject:    serviceaccount.MakeUsername(account.Namespace, account.Name),
		Kubernetes: content,
	})
	if err != nil {
		return "", "", fmt.Errorf("encode claims: %w", err)
	}
	token, err = t.keys.Signer().Sign(payload)
	return token, id, err
}

// AuthenticateToken implements authenticator.Token. It has no opinion on tokens of other issuers. Errors do not
// contain the token.
func (t *Tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, err := t.verify(token)
	if c == nil || err != nil {
		return nil, false, err
	}
	if err := c.check(t.options.Clock.Now()); err != nil {
		return nil, false, err
	}
	asked, ok := authenticator.AudiencesFrom(ctx)
	if !ok || len(asked) == 0 {
		asked = t.options.Audiences
	}
	audiences := asked.Intersect(authenticator.Audiences(c.Audience))
	if len(audiences) == 0 {
		return nil, false, fmt.Errorf("the token of %s is for the audiences %q, not for %q", c.Subject, c.Audience, asked)
	}
	if err := t.exists(ctx, c); err != nil {
		return nil, false, fmt.Errorf("token of %s: %w", c.Subject, err)
	}
	info := serviceaccount.ServiceAccountInfo{
		Namespace:    c.Kubernetes.Namespace,
		Name:         c.Kubernetes.Account.Name,
		UID:          string(c.Kubernetes.Account.UID),
		CredentialID: jwt.CredentialIDForJTI(c.ID),
	}
	if pod := c.Kubernetes.Pod; pod != nil {
		info.PodName, info.PodUID = pod.Name, string(pod.UID)
	}
	if node := c.Kubernetes.Node; node != nil {
		info.NodeName, info.NodeUID = node.Name, string(node.UID)
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// verifiedToken is a token with a valid signature.
type verifiedToken struct {
	key    string
	claims *claims
}

// verify verifies the signature of a token and returns its claims; nil if the token has another issuer.
func (t *Tokens) verify(token string) (*claims, error) {
	if len(token) > jws.MaxSize {
		return nil, nil
	}
	digest := sha256.Sum256([]byte(token))
	if known, ok := t.cache.Get(digest); ok && t.keys.Key(known.(verifiedToken).key) != nil {
		return known.(verifiedToken).claims, nil
	}
	parsed, err := jws.Parse(token)
	if err != nil {
		return nil, nil
	}
	c := &claims{}
	if err := json.Unmarshal(parsed.Payload, c); err != nil || !slices.Contains(t.options.Issuers, c.Issuer) {
		return nil, nil
	}
	key := t.keys.Key(parsed.KeyID)
	if key == nil {
		return nil, fmt.Errorf("the token's key %.64q is unknown or retired", parsed.KeyID)
	}
	if err := key.Verify(parsed); err != nil {
		return nil, err
	}
	t.cache.Add(digest, verifiedToken{key.ID, c})
	return c, nil
}

// check validates the claims without reading any object.
func (c *claims) check(now time.Time) error {
	k := c.Kubernetes
	switch {
	case k == nil || k.Namespace == "" || k.Account.Name == "" || k.Account.UID == "":
		return errors.New("the token is not a service account token")
	case c.Subject != serviceaccount.MakeUsername(k.Namespace, k.Account.Name):
		return fmt.Errorf("the token's subject %q does not match its service account", c.Subject)
	case c.Expires == 0:
		return fmt.Errorf("the token of %s never expires", c.Subject)
	case !now.Before(c.Expires.time()):
		return fmt.Errorf("the token of %s has expired at %s", c.Subject, c.Expires.time().UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore.time().Add(-skew)):
		return fmt.Errorf("the token of %s is not valid before %s", c.Subject, c.NotBefore.time().UTC().Format(time.RFC3339))
	case now.Before(c.IssuedAt.time().Add(-skew)):
		return fmt.Errorf("the token of %s is issued in the future, at %s", c.Subject, c.IssuedAt.time().UTC().Format(time.RFC3339))
	case k.Secret != nil:
		return fmt.Errorf("the token of %s is bound to an object of a cluster", c.Subject)
	}
	return nil
}

// exists returns nil if the account exists, and the object that the token is bound to.
func (t *Tokens) exists(ctx context.Context, c *claims) error {
	k := c.Kubernetes
	if err := t.same(ctx, Kind{Resource: Resource, Storage: t.accounts}, k.Namespace, k.Account); err != nil {
		return fmt.Errorf("the account: %w", err)
	}
	object := k.bound()
	if object == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind)
	kind, ok := t.kinds(gvk)
	if !ok {
		return fmt.Errorf("the token is bound to a %s, which this server does not serve", gvk)
	}
	if err := t.same(ctx, kind, k.Namespace, object.reference); err != nil {
		return fmt.Errorf("the %s to which the token is bound: %w", gvk.Kind, err)
	}
	return nil
}

// same returns nil if an object with that UID exists.
func (t *Tokens) same(ctx context.Context, kind Kind, namespace string, ref reference) error {
	m, err := get(ctx, kind, namespace, ref.Name)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return credential.Unavailable(err)
	}
	gone := m.GetDeletionTimestamp()
	switch {
	case m.GetUID() != ref.UID:
		return fmt.Errorf("%s has the UID %s, not %s: it was deleted and created again", ref.Name, m.GetUID(), ref.UID)
	case gone != nil && t.options.Clock.Now().After(gone.Add(terminating)):
		return fmt.Errorf("%s is deleted since %s", ref.Name, gone.UTC().Format(time.RFC3339))
	}
	return nil
}

// get reads the current object as the server itself.
func get(ctx context.Context, kind Kind, namespace, name string) (metav1.Object, error) {
	if kind.ClusterScoped {
		namespace = ""
	}
	ctx = request.WithNamespace(ctx, namespace)
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	// Errors contain the resource of the request info, which may be missing or another one in ctx.
	ctx = request.WithRequestInfo(
		ctx,
		&request.RequestInfo{
			IsResourceRequest: true,
			Verb:              "get",
			APIGroup:          kind.Resource.Group,
			Resource:          kind.Resource.Resource,
			Namespace:         namespace,
			Name:              name,
		},
	)
	obj, err := kind.Storage.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return meta.Accessor(obj)
}
