package query

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func badParameters(query url.Values) error {
	return apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q", sortedKeys(query)[0]))
}

type namespacesKey struct{}

// namespacesOf returns the namespaces of a query, sorted; nil means all namespaces of its path.
func namespacesOf(ctx context.Context) []string {
	all, _ := ctx.Value(namespacesKey{}).([]string)
	return all
}

// unionOf identifies a union of namespaces. A tail can only continue in the same union: in another one, it would miss
// earlier events of the additional namespaces. It is empty if namespaces is nil.
func unionOf(namespaces []string) string {
	if namespaces == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(namespaces, "/")))
	return hex.EncodeToString(sum[:6])
}

var errUnion = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
	Message: "the namespaces in which you may watch the resource have changed: start a new watch",
}}

// StillMay returns a function that checks whether the caller of attributes may continue a tail, by its current rights in
// the namespaces in which the tail began, and these namespaces. The function is nil unless the request is a query over
// all namespaces of a namespaced resource: all other requests are authorized in the usual way.
func (a *API) StillMay(r *http.Request) (check func(ctx context.Context, attributes authorizer.Attributes) error, namespaces []string) {
	p, ours := a.placeOf(r)
	if !ours || !p.isResource() || p.namespace != "" {
		return nil, nil
	}
	resource := a.find(p)
	if resource == nil || !resource.Namespaced {
		return nil, nil
	}
	namespaces = namespacesOf(r.Context())
	return func(ctx context.Context, attributes authorizer.Attributes) error {
		return a.stillMay(ctx, attributes, namespaces)
	}, namespaces
}

// stillMay returns nil if the caller may continue a tail of all namespaces or of a union, or if that cannot be
// determined now.
func (a *API) stillMay(ctx context.Context, attributes authorizer.Attributes, namespaces []string) error {
	decision, reason, err := a.config.Authorizer.Authorize(ctx, attributes)
	switch {
	case err == nil && decision == authorizer.DecisionAllow && namespaces == nil:
		return nil
	case err == nil && decision == authorizer.DecisionAllow:
		return errUnion
	case err != nil:
		return nil
	}
	now, err := a.union(ctx, attributes, a.config.Union)
	if err != nil || namespaces != nil && slices.Equal(now, namespaces) {
		return nil
	}
	if len(now) > 0 {
		return errUnion
	}
	return apierrors.NewForbidden(
		schema.GroupResource{Group: attributes.GetAPIGroup(), Resource: attributes.GetResource()},
		"",
		fmt.Errorf("you may no longer watch the resource: %s", reason),
	)
}

// Authorize returns a handler around authorized, which authorizes requests by verb and resource. It makes two
// exceptions. A query over all namespaces is restricted to the namespaces in which the caller may list the resource,
// if it may not list all of them. And authenticated callers may read the descriptions of resources that they may
// list. allowed is the handler behind authorized.
func (a *API) Authorize(authorized, allowed http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ours := a.placeOf(r)
		caller, known := request.UserFrom(r.Context())
		if !ours || !known || r.Method != http.MethodGet {
			authorized.ServeHTTP(w, r)
			return
		}
		if !p.isResource() {
			if !slices.Contains(caller.GetGroups(), user.AllAuthenticated) {
				authorized.ServeHTTP(w, r)
				return
			}
			annotate(r.Context(), "callers may see what they may list")
			allowed.ServeHTTP(w, r)
			return
		}
		resource := a.find(p)
		if p.namespace != "" || resource == nil || !resource.Namespaced {
			authorized.ServeHTTP(w, r)
			return
		}
		attributes, err := filters.GetAuthorizerAttributes(r.Context())
		if err != nil {
			WriteError(w, err)
			return
		}
		decision, reason, err := a.config.Authorizer.Authorize(r.Context(), attributes)
		if err == nil && decision == authorizer.DecisionAllow {
			annotate(r.Context(), reason)
			allowed.ServeHTTP(w, r)
			return
		}
		namespaces, err := a.union(r.Context(), attributes, a.config.Union)
		switch {
		case err != nil:
			WriteError(w, err)
		case len(namespaces) == 0:
			authorized.ServeHTTP(w, r)
		default:
			annotate(r.Context(), fmt.Sprintf("in %d namespaces", len(namespaces)))
			allowed.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), namespacesKey{}, namespaces)))
		}
	})
}

// annotate adds upstream's annotations of an allowed request to the audit event.
func annotate(ctx context.Context, reason string) {
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "allow", "authorization.k8s.io/reason", reason)
}

// union returns the namespaces, sorted, in which a caller may do something that it may not do in all namespaces. It
// stops when it has found enough of them.
func (a *API) union(ctx context.Context, attributes authorizer.Attributes, enough int) ([]string, error) {
	all, err := a.config.Namespaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("namespaces of a query: %w", err)
	}
	if len(all) > a.config.Union {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("you may not %s %s in all namespaces, and the server has %d namespaces, more than "+
			"the maximum of %d for separate checks: use a path with a namespace, as in %s/GROUP/VERSION/namespaces/NAME/%s",
			attributes.GetVerb(), attributes.GetResource(), len(all), a.config.Union, a.config.Prefix, attributes.GetResource()))
	}
	var may []string
	for _, namespace := range all {
		decision, _, err := a.config.Authorizer.Authorize(ctx, namespacedAttributes{attributes, namespace})
		if ctx.Err() != nil {
			return nil, apierrors.NewTimeoutError("the permissions of the user in all namespaces could not be checked in time", 1)
		}
		if err == nil && decision == authorizer.DecisionAllow {
			if may = append(may, namespace); len(may) == enough {
				break
			}
		}
	}
	slices.Sort(may)
	return may, nil
}

// namespacedAttributes is a request restricted to one namespace.
type namespacedAttributes struct {
	authorizer.Attributes
	namespace string
}

// GetNamespace implements authorizer.Attributes.
func (a namespacedAttributes) GetNamespace() string { return a.namespace }

// mayList reports whether the caller may list a resource in any namespace.
func (a *API) mayList(ctx context.Context, resource *Resource) (bool, error) {
	caller, ok := request.UserFrom(ctx)
	if !ok {
		return false, nil
	}
	attributes := authorizer.AttributesRecord{
		User: caller, Verb: "list", ResourceRequest: true,
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
	}
	decision, _, err := a.config.Authorizer.Authorize(ctx, attributes)
	if err == nil && decision == authorizer.DecisionAllow {
		return true, nil
	}
	if !resource.Namespaced {
		return false, nil
	}
	may, err := a.union(ctx, attributes, 1)
	if apierrors.IsBadRequest(err) {
		return false, nil // nor could it be queried over all namespaces
	}
	return len(may) > 0, err
}
