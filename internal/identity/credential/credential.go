// Package credential is where authenticators record by which credential of a request its caller became known, and where
// filters ask them to verify that credential once more, without what they remember.
//
// Nothing is recorded unless the context of the request has a place for it: most requests need none.
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
	// None is for requests without a credential: callers are anonymous, or known by the place from which they connect.
	None Kind = iota
	// Certificate is a client certificate. Browsers send it with all requests to a server, whichever page causes them.
	Certificate
	// Token is a bearer token, in the Authorization header or as a subprotocol of a WebSocket. A page has to know it.
	Token
	// Proxy is the client certificate of a proxy, which names the caller in headers.
	Proxy
)

// Accepted is the credential that authenticated a request. It is written while the request is authenticated, and may be read
// by what is behind. The zero value is for requests without a credential.
type Accepted struct {
	Kind Kind
	// User is the caller, before impersonation; nil until the request is authenticated.
	User user.Info
}

// Key is the key of contexts at which a request has its *Accepted.
type Key struct{}

// With returns a context in which authenticators record to accepted.
func With(ctx context.Context, accepted *Accepted) context.Context {
	return context.WithValue(ctx, Key{}, accepted)
}

// From returns where authenticators record; nil if they do not.
func From(ctx context.Context) *Accepted {
	accepted, _ := ctx.Value(Key{}).(*Accepted)
	return accepted
}

// Noting returns an authenticator that records the kind of credential of the requests that known accepts.
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

// NotingUser returns an authenticator that records the callers that known knows.
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

// ErrUnavailable is matched by the errors of authenticators that could not find out whether a credential is good: because a
// server that they ask, or a storage, does not answer. All other errors are refusals of the credential.
var ErrUnavailable = errors.New("the credential cannot be verified now")

// Unavailable returns an error that matches ErrUnavailable and has the text of err; nil if err is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailable{err}
}

type unavailable struct{ error }

// Unwrap lets errors.Is find both.
func (e *unavailable) Unwrap() []error { return []error{e.error, ErrUnavailable} }

type againKey struct{}

// Again returns a context in which a credential, or a right, is verified once more: from what is true now, and not from what is
// remembered. Refusals are not logged, and errors are returned as they are.
func Again(ctx context.Context) context.Context {
	return context.WithValue(ctx, againKey{}, true)
}

// IsAgain reports whether Again has returned the context, or one that it was made of.
func IsAgain(ctx context.Context) bool {
	again, _ := ctx.Value(againKey{}).(bool)
	return again
}

// Uncached returns an authenticator that asks cached, which remembers the answers of direct, but direct when a token is verified
// once more.
func Uncached(cached, direct authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if IsAgain(ctx) {
			return direct.AuthenticateToken(ctx, token)
		}
		return cached.AuthenticateToken(ctx, token)
	})
}

// UncachedAuthorizer is Uncached for rights.
func UncachedAuthorizer(cached, direct authorizer.Authorizer) authorizer.Authorizer {
	return uncached{cached, direct}
}

type uncached struct {
	authorizer.Authorizer
	direct authorizer.Authorizer
}

// Authorize implements authorizer.Authorizer.
func (u uncached) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if IsAgain(ctx) {
		return u.direct.Authorize(ctx, a)
	}
	return u.Authorizer.Authorize(ctx, a)
}
