package cluster

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/annexapi/annex/internal/identity/credential"
)

// OpenPaths returns the paths that anonymous requests may read by default: health, including the paths of single
// checks, and the version.
func OpenPaths() []string {
	return []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*", "/version"}
}

// openAuthorization creates the authorizer. Members of system:masters may do everything, and all callers may read the
// open paths. The cluster decides about other requests.
func (h *Cluster) openAuthorization() error {
	o := h.config.Options
	paths := o.AlwaysAllowPaths
	if paths == nil {
		paths = OpenPaths()
	}
	open := []union.NamedAuthorizer{
		{AuthorizerName: "kubernetes.io/always-allow-groups", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	}
	if len(paths) > 0 {
		allowed, err := path.NewAuthorizer(paths)
		if err != nil {
			return fmt.Errorf("Options.Cluster.AlwaysAllowPaths: %w", err)
		}
		open = append(open, union.NamedAuthorizer{AuthorizerName: "kubernetes.io/always-allow-paths", Authorizer: allowed})
	}
	asking := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: h.authorization.AuthorizationV1(),
		AllowCacheTTL:             lifetime(o.AuthorizedCacheTTL),
		DenyCacheTTL:              lifetime(o.UnauthorizedCacheTTL),
		WebhookRetryBackoff:       reviewBackoff(),
	}
	delegated, err := asking.New()
	if err != nil {
		return fmt.Errorf("authorization by the cluster: %w", err)
	}
	asking.AllowCacheTTL, asking.DenyCacheTTL = 0, 0
	again, err := asking.New()
	if err != nil {
		return fmt.Errorf("authorization by the cluster: %w", err)
	}
	delegated = credential.UncachedAuthorizer(delegated, again)
	if h.open, err = union.New(open...); err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	h.all, err = union.New(append(open, union.NamedAuthorizer{AuthorizerName: "kubernetes.io/webhook", Authorizer: delegated})...)
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	return nil
}

// Authorizer returns the authorizer.
func (h *Cluster) Authorizer() authorizer.Authorizer { return h.all }

// Open returns the part of the authorizer that does not ask the cluster.
func (h *Cluster) Open() authorizer.Authorizer { return h.open }
