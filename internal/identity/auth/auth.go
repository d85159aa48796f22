// Package auth authenticates and authorizes the callers of a standalone server, which has no cluster to ask.
//
// A caller has a client certificate, a bearer token from a file or from an issuer in an AuthenticationConfiguration,
// or the loopback token of the server itself. A request without any of them is anonymous. Unless the configuration
// allows more, anonymous requests may only read the open paths; elsewhere they get 401. Invalid credentials are
// rejected on all paths.
package auth

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authenticatorunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/annexapi/annex/internal/identity/clientcert"
	"github.com/annexapi/annex/internal/identity/credential"
)

// Credentials configure how callers are authenticated. The zero value authenticates no caller.
type Credentials struct {
	// ClientCA verifies client certificates; nil accepts none. The subject's common name is the user, its
	// organizations are the groups.
	ClientCA dynamiccertificates.CAContentProvider
	// Revoked reports whether a client certificate is rejected although ClientCA verifies it; nil rejects none. It is
	// called for each request and each certificate of its connection.
	Revoked func(*x509.Certificate) bool
	// Tokens authenticate bearer tokens, in order.
	Tokens []authenticator.Token
	// RequestHeaders configure the proxy that may name callers in headers; nil means no proxy.
	RequestHeaders *authenticatorfactory.RequestHeaderConfig
	// Localhost is the user of programs on this machine that send no credentials; nil lets in none.
	Localhost user.Info
	// Anonymous authenticates requests without credentials; nil accepts them on the open paths only.
	Anonymous authenticator.Request
}

// NewAuthenticator returns the authenticator of a standalone server. It records the accepted credential if the
// request has a place for it. Every authenticated caller gets the group system:authenticated.
func NewAuthenticator(credentials Credentials) authenticator.Request {
	var known, others []authenticator.Request
	if credentials.RequestHeaders != nil {
		byHeaders, verified := clientcert.FrontProxy(credentials.RequestHeaders)
		known = append(known, credential.Noting(credential.Proxy, byHeaders))
		others = append(others, credential.Noting(credential.Proxy, verified))
	}
	if credentials.ClientCA != nil {
		verify := credentials.ClientCA.VerifyOptions
		known = append(known, credential.Noting(credential.Certificate, clientcert.New(verify).Users()))
		others = append(others, credential.Noting(credential.Certificate, x509request.NewDynamic(verify, x509request.CommonNameUserConversion)))
	}
	if len(credentials.Tokens) > 0 {
		tokens := tokenunion.New(credentials.Tokens...)
		others = append(others, credential.Noting(credential.Token, bearertoken.New(tokens)),
			credential.Noting(credential.Token, websocket.NewProtocolAuthenticator(tokens)))
	}
	known = append(known, others...)
	if credentials.Localhost != nil {
		known = append(known, localhost(credentials.Localhost))
	}
	anonymous := credentials.Anonymous
	if anonymous == nil {
		anonymous = authenticator.RequestFunc(authenticateAnonymous)
	}
	return authenticatorunion.NewFailOnError(
		refuseRevoked(credentials.Revoked),
		group.NewAuthenticatedGroupAdder(authenticatorunion.New(known...)),
		anonymous,
	)
}

// refuseRevoked rejects requests with a revoked certificate, regardless of other credentials, and has no opinion on
// others. It checks the certificates of the connection itself, so that open connections and cached results cannot
// bypass it.
func refuseRevoked(revoked func(*x509.Certificate) bool) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if revoked == nil || req.TLS == nil {
			return nil, false, nil
		}
		for _, cert := range req.TLS.PeerCertificates {
			if revoked(cert) {
				return nil, false, fmt.Errorf("the client certificate %x of %q is revoked", cert.SerialNumber, cert.Subject.CommonName)
			}
		}
		return nil, false, nil
	})
}

// authenticateAnonymous accepts anonymous requests on the open paths. Upstream's anonymous authenticator needs a list
// of exact paths, but each health check has a path of its own.
func authenticateAnonymous(req *http.Request) (*authenticator.Response, bool, error) {
	if !isOpen(strings.ToLower(req.Method), req.URL.Path) {
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{
		User:      &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		Audiences: audiences,
	}, true, nil
}

// isOpen reports whether anonymous requests may read path: the version, and health including the paths of single
// checks.
func isOpen(verb, path string) bool {
	if verb != "get" && verb != "head" {
		return false
	}
	path = strings.TrimSuffix(path, "/")
	switch path {
	case "/healthz", "/livez", "/readyz", "/version":
		return true
	}
	root, check, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch root {
	case "healthz", "livez", "readyz":
		return !strings.Contains(check, "..")
	}
	return false
}
