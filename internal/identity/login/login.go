// Package login lets people, and programs of theirs, sign in to a server that stands alone: by a
// password or a client's secret of a user file, and by an issuer of OpenID Connect. It is an
// authorization server of OAuth 2.0 for the one API that it belongs to (RFC 6749, with RFC 7009,
// RFC 7636 and RFC 8414), and it keeps the sessions of pages.
//
// What a caller has proved is a session, stored in the server's own storage, where replicas see
// it and a restart finds it. Access tokens are short-lived signatures over a session's name: each
// request looks the session up, and the user as the user file has it now, so that what ends a
// session or a user ends the tokens. Secrets are stored as digests only.
package login

import (
	"cmp"
	"context"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/identity/jws"
)

// Defaults of Options.
const (
	DefaultTokenLifetime   = 15 * time.Minute
	DefaultIdleTimeout     = 24 * time.Hour
	DefaultSessionLifetime = 7 * 24 * time.Hour
)

// Keys sign tokens and verify them.
type Keys interface {
	Signer() *jws.Signer
	// Key returns the key of an ID, nil if there is none.
	Key(id string) *jws.Key
	// Verifying are the keys whose tokens are accepted.
	Verifying() []*jws.Key
}

// Options say how people sign in.
type Options struct {
	// UserFile has the users, clients and providers.
	UserFile string
	// Awaited says that the UserFile need not be there. Until it is, there are no endpoints.
	Awaited bool
	// Issuer is whom tokens name as their issuer. It must be no other issuer's of the server.
	Issuer string
	// PublicURL is where clients reach the server, without a slash at its end; empty takes it
	// from each request.
	PublicURL string
	// Audiences are what the server calls itself, at least one.
	Audiences []string
	// TokenLifetime is how long an access token is valid, IdleTimeout how long a session lasts that
	// is not used, and SessionLifetime how long it lasts at most. 0 is the default.
	TokenLifetime, IdleTimeout, SessionLifetime time.Duration
	// Title names the server to people.
	Title string
	// Keys sign and verify.
	Keys Keys
	// Sessions is the storage that Stored describes.
	Sessions storage.Interface
	// IDTokens knows whose the ID tokens of the providers' issuers are; nil has no providers.
	IDTokens authenticator.Token
	// Clock is used for validity; nil is the real one.
	Clock clock.PassiveClock
}

// Login is how people sign in to a server. Its methods may be called concurrently.
type Login struct {
	options  Options
	users    *UserFile
	sessions *sessions
	guard    *guard
	page     *template.Template

	documents *documents
}

// Open reads the user file. An error is one line with the file and what is wrong in it.
func Open(options Options) (*Login, error) {
	options.TokenLifetime = cmp.Or(options.TokenLifetime, DefaultTokenLifetime)
	options.IdleTimeout = cmp.Or(options.IdleTimeout, DefaultIdleTimeout)
	options.SessionLifetime = cmp.Or(options.SessionLifetime, DefaultSessionLifetime)
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	users, err := OpenUserFile(options.UserFile, options.IDTokens != nil, options.Awaited)
	if err != nil {
		return nil, err
	}
	l := &Login{
		options:   options,
		users:     users,
		guard:     newGuard(options.Clock),
		page:      newPage(),
		documents: &documents{known: map[string]*document{}},
	}
	l.sessions = newSessions(options.Sessions, options.Clock)
	return l, nil
}

// HasUsers tells whether there is a user file, so that anyone can sign in.
func (l *Login) HasUsers() bool { return !l.users.current.Load().awaited }

// Run reads the user file again when it changes, until ctx is done.
func (l *Login) Run(ctx context.Context) { l.users.Run(ctx) }

// The paths of the endpoints.
const (
	tokenPath  = "/oauth/token"
	revokePath = "/oauth/revoke"
	keysPath   = "/oauth/jwks"

	authorizePath = "/oauth/authorize"
	providerPath  = "/oauth/login"
	callbackPath  = "/oauth/callback"

	sessionPath      = "/oauth/session"
	sessionTokenPath = "/oauth/session/token"

	metadataPath = "/.well-known/oauth-authorization-server"
)

// Paths are those that Handler answers; what ends in a slash is with all below it.
func Paths() []string { return []string{"/oauth/", metadataPath, metadataPath + "/"} }

// Handler answers the endpoints. No caller has to be known to use them, for it is here that callers
// become known.
func (l *Login) Handler() http.Handler {
	endpoints := map[string]map[string]http.HandlerFunc{
		tokenPath:  {http.MethodPost: l.serveToken},
		revokePath: {http.MethodPost: l.serveRevoke},
		keysPath:   {http.MethodGet: l.serveKeys},

		authorizePath: {http.MethodGet: l.serveAuthorize, http.MethodPost: l.serveAuthorized},

		providerPath: {http.MethodGet: l.serveProvider},
		callbackPath: {http.MethodGet: l.serveCallback},

		sessionPath:      {http.MethodPost: l.serveSession, http.MethodDelete: l.serveEnd},
		sessionTokenPath: {http.MethodPost: l.serveSessionToken},
	}
	metadata := map[string]http.HandlerFunc{http.MethodGet: l.serveMetadata}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if !l.HasUsers() {
			http.NotFound(w, r)
			return
		}
		methods := endpoints[r.URL.Path]
		if strings.HasPrefix(r.URL.Path, metadataPath) {
			methods = metadata
		}
		if methods == nil {
			http.NotFound(w, r)
			return
		}
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		handler, ok := methods[method]
		if !ok {
			var allowed []string
			for method := range methods {
				allowed = append(allowed, method)
			}
			slices.Sort(allowed)
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			refuse(w, refusal{code: http.StatusMethodNotAllowed, kind: invalidRequest, text: r.URL.Path + " does not answer " + r.Method})
			return
		}
		handler(w, r)
	})
}

// secure says that an answer is for one client, now, as what it says it is, and in no frame.
func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
}
