// Package login lets people and their programs sign in to a standalone server: by a password or client secret of a
// user file, through an OpenID Connect provider, or by a one-time link. It is an OAuth 2.0 authorization server for the
// server's own API (RFC 6749, with RFC 7009, RFC 7636 and RFC 8414), and keeps the sessions of web pages.
//
// A sign-in creates a session in the server's own storage. Replicas share it, and it survives a restart. Access
// tokens are short-lived signatures over the session's name. Each request looks up the session and the current entry
// of the user file, so that ending a session or removing a user invalidates the tokens. Secrets are stored as digests
// only.
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

// Keys sign and verify access tokens.
type Keys interface {
	Signer() *jws.Signer
	// Key returns the key with an ID, or nil if there is none.
	Key(id string) *jws.Key
	// Verifying returns the keys whose tokens are accepted.
	Verifying() []*jws.Key
}

// Options configure Open.
type Options struct {
	// UserFile is the path of the file with users, clients and providers.
	UserFile string
	// Awaited allows UserFile to be missing. The endpoints do not exist until the file appears.
	Awaited bool
	// Issuer is the issuer in access tokens. It must differ from every other issuer that the server accepts.
	Issuer string
	// PublicURL is the URL under which clients reach the server, without a trailing slash. If it is empty, each
	// request determines the URL.
	PublicURL string
	// Audiences are the audiences of access tokens, at least one.
	Audiences []string
	// TokenLifetime is the validity of an access token, IdleTimeout the time after which an unused session ends, and
	// SessionLifetime the maximum duration of a session. 0 selects the default.
	TokenLifetime, IdleTimeout, SessionLifetime time.Duration
	// Title is the name of the server on the sign-in page.
	Title string
	// Keys sign and verify access tokens.
	Keys Keys
	// Sessions is the storage of the resource that Stored describes.
	Sessions storage.Interface
	// IDTokens authenticates ID tokens of the providers; nil disables providers.
	IDTokens authenticator.Token
	// Clock is used for all lifetimes; nil means the real clock.
	Clock clock.PassiveClock
}

// Login serves the endpoints and authenticates the tokens. Its methods may be called concurrently.
type Login struct {
	options  Options
	users    *UserFile
	sessions *sessions
	guard    *guard
	links    *links
	page     *template.Template

	documents *documents
}

// Open reads the user file. An error is a single line that names the file and the mistake.
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
		links:     newLinks(options.Clock),
		page:      newPage(),
		documents: &documents{known: map[string]*document{}},
	}
	l.sessions = newSessions(options.Sessions, options.Clock)
	return l, nil
}

// HasUsers reports whether the user file exists, so that signing in is possible.
func (l *Login) HasUsers() bool { return !l.users.current.Load().awaited }

// Run reloads the user file when it changes, until ctx is done.
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
	sessionLinkPath  = "/oauth/session/link"

	metadataPath = "/.well-known/oauth-authorization-server"
)

// LinksPath is where callers make links.
const LinksPath = "/oauth/links"

// Paths returns the paths that Handler serves. A path with a trailing slash includes everything below it.
func Paths() []string { return []string{"/oauth/", metadataPath, metadataPath + "/"} }

// Handler serves the endpoints. They need no authenticated caller, because they are how callers authenticate.
func (l *Login) Handler() http.Handler {
	endpoints := map[string]map[string]http.HandlerFunc{
		tokenPath:  {http.MethodPost: l.serveToken},
		revokePath: {http.MethodPost: l.serveRevoke},
		keysPath:   {http.MethodGet: l.serveKeys},

		authorizePath: {http.MethodGet: l.serveAuthorize, http.MethodPost: l.serveAuthorized},

		providerPath: {http.MethodGet: l.serveProvider},
		callbackPath: {http.MethodGet: l.serveCallback},

		sessionPath:      {http.MethodPost: serveBegun(l.beginPage), http.MethodDelete: l.serveEnd},
		sessionTokenPath: {http.MethodPost: l.serveSessionToken},
	}
	ofLinks := map[string]map[string]http.HandlerFunc{ // what a server without users has, too
		sessionPath:      {http.MethodDelete: l.serveEnd},
		sessionTokenPath: endpoints[sessionTokenPath],
		sessionLinkPath:  {http.MethodPost: serveBegun(l.useLink)},
		LinksPath:        {http.MethodPost: l.serveNewLink},
	}
	metadata := map[string]http.HandlerFunc{http.MethodGet: l.serveMetadata}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		var methods map[string]http.HandlerFunc
		if l.HasUsers() {
			methods = endpoints[r.URL.Path]
			if strings.HasPrefix(r.URL.Path, metadataPath) {
				methods = metadata
			}
		}
		if methods == nil && l.HasLinks() {
			methods = ofLinks[r.URL.Path]
		}
		if methods == nil && !l.HasUsers() && r.URL.Path == tokenPath {
			refuse(w, refusal{code: http.StatusNotFound, kind: invalidRequest, text: "nobody can sign in yet, because the server has no " +
				"users: create a user on the server's machine with the verb user passwd of the program, such as " + l.options.Title +
				" user passwd alice, and repeat the request"})
			return
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

// secure sets headers that forbid caching, content sniffing, referrers and framing.
func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
}
