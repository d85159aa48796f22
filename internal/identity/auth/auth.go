// Package auth decides who a caller is and what the caller may do while a server
// stands alone, where there is no cluster to ask.
//
// A caller is known by a client certificate, by a bearer token from a file or of an issuer
// that an AuthenticationConfiguration names, or by the token with which the server talks to
// itself. A request without any of them is anonymous, and allowed only on the open paths
// unless that file says otherwise; elsewhere the answer is 401. Credentials that are wrong
// are refused everywhere.
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

// Credentials are the ways in which a caller can prove who it is. The zero value
// authenticates no caller.
type Credentials struct {
	// ClientCA verifies client certificates; nil accepts none. The subject's common
	// name is the user, its organizations are the groups.
	ClientCA dynamiccertificates.CAContentProvider
	// Revoked reports which client certificates are refused although ClientCA verifies
	// them; nil is none. It is asked for each request, once for each certificate of its
	// connection.
	Revoked func(*x509.Certificate) bool
	// Tokens are asked about bearer tokens, in order.
	Tokens []authenticator.Token
	// RequestHeaders say which proxy may name callers in headers; nil is none.
	RequestHeaders *authenticatorfactory.RequestHeaderConfig
	// Localhost is who programs on this machine are that send no credentials; nil lets in none.
	Localhost user.Info
	// Anonymous decides about requests without credentials; nil lets them in on the open
	// paths.
	Anonymous authenticator.Request
}

// NewAuthenticator returns the authenticator of a server that stands alone, which records accepted credentials where a request
// has a place for that.
// Every caller that is known gets the group system:authenticated.
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

// refuseRevoked refuses requests with a revoked certificate, whatever other credentials they
// have, and has no opinion of others. It looks at what the connection presents, so that
// neither connections that are open nor outcomes that are remembered get around it.
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

// authenticateAnonymous lets anonymous requests in on the open paths. Upstream's
// anonymous authenticator can do the same only for paths listed one by one, and
// health checks have a path for each check.
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

// isOpen says whether anonymous requests may read path: health, with a path below for
// every single check, and the version.
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
