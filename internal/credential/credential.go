// Package credential is where authenticators record by which credential of a request its caller became known.
//
// Nothing is recorded unless the context of the request has a place for it: most requests need none.
package credential

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
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
