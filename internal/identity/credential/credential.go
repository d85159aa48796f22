// Package credential records the credential that authenticated a request, and lets filters verify it again without
// caches.
//
// Nothing is recorded unless the context of the request has a place for it; most requests need none.
package credential

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Kind is a kind of credential.
type Kind uint8

// The kinds of credentials.
const (
	// None means that the request has no credential: the caller is anonymous, or is identified by its address.
	None Kind = iota
	// Certificate is a client certificate. Browsers send it with all requests to a server, whichever page causes
	// them.
	Certificate
	// Token is a bearer token, in the Authorization header or as a subprotocol of a WebSocket. A page has to know it.
	Token
	// Proxy is the client certificate of a proxy, which names the caller in headers.
	Proxy
)

// Credential is the credential that authenticated a request. Authenticators write it; handlers behind authentication
// may read it. The zero value means no credential.
type Credential struct {
	Kind Kind
	// User is the caller, before impersonation; nil until the request is authenticated.
	User user.Info
}

// Key is the context key of *Credential.
type Key struct{}

// With returns a context in which authenticators record to accepted.
func With(ctx context.Context, accepted *Credential) context.Context {
	return context.WithValue(ctx, Key{}, accepted)
}

// From returns the record of the context, or nil.
func From(ctx context.Context) *Credential {
	accepted, _ := ctx.Value(Key{}).(*Credential)
	return accepted
}

// Noting returns an authenticator that records kind for the requests that known accepts.
func Noting(kind Kind, known authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := known.AuthenticateRequest(r)
		if ok && err == nil {
			if accepted := From(r.Context()); accepted != nil {
				accepted.Kind = kind
			}
		}
		return response, ok, err
	})
}

// NotingUser returns an authenticator that records the users that known authenticates.
func NotingUser(known authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := known.AuthenticateRequest(r)
		if ok && err == nil {
			if accepted := From(r.Context()); accepted != nil {
				accepted.User = response.User
			}
		}
		return response, ok, err
	})
}

// ErrUnavailable matches the errors of authenticators that could not verify a credential, because a storage or
// another server does not respond. All other errors are refusals of the credential.
var ErrUnavailable = errors.New("the credential cannot be verified now")

// Unavailable returns an error that matches ErrUnavailable and has the text of err; nil if err is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailable{err}
}

type unavailable struct{ error }

// Unwrap makes errors.Is match both errors.
func (e *unavailable) Unwrap() []error { return []error{e.error, ErrUnavailable} }

type withoutCachesKey struct{}

// WithoutCaches returns a context in which a credential or a right is verified again from the current state, without caches.
// Refusals are not logged, and errors are returned unchanged.
func WithoutCaches(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutCachesKey{}, true)
}

// IsWithoutCaches reports whether ctx derives from a context of WithoutCaches.
func IsWithoutCaches(ctx context.Context) bool {
	again, _ := ctx.Value(withoutCachesKey{}).(bool)
	return again
}

// Uncached returns an authenticator that uses cached, a cache in front of direct, except in a context of WithoutCaches, where
// it uses direct.
func Uncached(cached, direct authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if IsWithoutCaches(ctx) {
			return direct.AuthenticateToken(ctx, token)
		}
		return cached.AuthenticateToken(ctx, token)
	})
}

// UncachedAuthorizer is like Uncached, for authorizers.
func UncachedAuthorizer(cached, direct authorizer.Authorizer) authorizer.Authorizer {
	return uncachedAuthorizer{cached, direct}
}

type uncachedAuthorizer struct {
	authorizer.Authorizer
	direct authorizer.Authorizer
}

// Authorize implements authorizer.Authorizer.
func (u uncachedAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if IsWithoutCaches(ctx) {
		return u.direct.Authorize(ctx, a)
	}
	return u.Authorizer.Authorize(ctx, a)
}
