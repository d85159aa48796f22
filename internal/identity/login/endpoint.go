package login

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/jws"
)

// maxBody is the maximum size of a form, in bytes.
const maxBody = 16 << 10

// The error codes of RFC 6749, section 5.2, and of section 4.1.2.1 where 5.2 has none.
const (
	invalidRequest   = "invalid_request"
	invalidClient    = "invalid_client"
	invalidGrant     = "invalid_grant"
	unauthorized     = "unauthorized_client"
	unsupportedGrant = "unsupported_grant_type"
	invalidScope     = "invalid_scope"
	serverError      = "server_error"
	unavailable      = "temporarily_unavailable"
)

// refusal is an error response.
type refusal struct {
	code int
	kind string
	text string
	// after is the Retry-After header, in seconds; 0 omits it.
	after int
	// basic adds a WWW-Authenticate header, since the client sent its credentials by HTTP Basic.
	basic bool
}

func (e refusal) Error() string { return e.text }

func bad(kind, format string, args ...any) error {
	return refusal{code: http.StatusBadRequest, kind: kind, text: fmt.Sprintf(format, args...)}
}

// refusalOf converts err to the response for the client. Internal errors are logged and reported without detail.
func refusalOf(r *http.Request, err error) refusal {
	var known refusal
	var busy rateLimitError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &busy):
		return refusal{code: http.StatusTooManyRequests, kind: unavailable, text: busy.Error(), after: busy.seconds()}
	}
	klog.FromContext(r.Context()).Error(err, "Signing in does not work")
	return refusal{
		code:  http.StatusServiceUnavailable,
		kind:  unavailable,
		text:  "sessions cannot be stored or read now: see the server's log",
		after: 1,
	}
}

func refuse(w http.ResponseWriter, e refusal) {
	if e.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.after))
	}
	if e.basic {
		w.Header().Set("WWW-Authenticate", `Basic realm="oauth"`)
	}
	answer(w, e.code, map[string]any{"error": e.kind, "error_description": plain(e.text)})
}

// plain replaces the characters that RFC 6749 forbids in error descriptions.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\':
			return '\''
		case r < 0x20 || r > 0x7e:
			return '?'
		}
		return r
	}, text)
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client may have disconnected
}

// form parses the form in the body. It rejects query parameters and repeated parameters.
func form(r *http.Request) (url.Values, error) {
	if r.URL.RawQuery != "" {
		return nil, bad(invalidRequest, "parameters must be in the body, because servers log URLs")
	}
	return body(r)
}

func body(r *http.Request) (url.Values, error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return nil, refusal{
			code: http.StatusUnsupportedMediaType,
			kind: invalidRequest,
			text: "the body must be application/x-www-form-urlencoded",
		}
	}
	data, err := readBody(r)
	if err != nil {
		return nil, err
	}
	values, err := url.ParseQuery(string(data))
	if err != nil {
		return nil, bad(invalidRequest, "the body is not a form")
	}
	return values, single(values)
}

func readBody(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, bad(invalidRequest, "the body did not arrive")
	case len(data) > maxBody:
		return nil, refusal{
			code: http.StatusRequestEntityTooLarge,
			kind: invalidRequest,
			text: fmt.Sprintf("the body has more than %d bytes", maxBody),
		}
	}
	return data, nil
}

func single(values url.Values) error {
	for name, all := range values {
		if len(all) > 1 {
			return bad(invalidRequest, "the parameter %.64q is set %d times", name, len(all))
		}
	}
	return nil
}

// note adds the grant type, the user or client, and the outcome to the audit event. Unknown names are left out,
// because people type passwords into the wrong field.
func (l *Login) note(r *http.Request, how, name string, err error) {
	known := l.users.current.Load()
	outcome := "ok"
	if err != nil {
		outcome = refusalOf(r, err).kind
	}
	if known.users[name] == nil && known.clients[name] == nil && err != nil {
		name = "(unknown)"
	}
	audit.AddAuditAnnotations(r.Context(), "login.annex/grant", how, "login.annex/user", name, "login.annex/outcome", outcome)
}

// client authenticates the client of a request by HTTP Basic or by the form. It returns nil if the request names no
// client. A bearer token in the header is ignored: it does not belong to a client, and may have expired.
func (l *Login) client(r *http.Request, values url.Values) (*Client, error) {
	id, secret, basic := r.BasicAuth()
	if basic {
		var first, second error
		id, first = url.QueryUnescape(id)
		secret, second = url.QueryUnescape(secret)
		switch {
		case first != nil || second != nil:
			return nil, bad(invalidRequest, "the client's credentials are not form-encoded")
		case values.Has("client_secret"):
			return nil, bad(invalidRequest, "the client authenticates in two ways: use only one")
		case values.Has("client_id") && values.Get("client_id") != id:
			return nil, bad(invalidRequest, "client_id does not match the authenticated client")
		}
	} else {
		id, secret = values.Get("client_id"), values.Get("client_secret")
	}
	if id == "" && secret == "" && !basic {
		return nil, nil
	}
	known := l.users.current.Load()
	c := known.clients[id]
	if c != nil && c.Secret == "" && secret == "" && !c.Disabled {
		return c, nil
	}
	hash, disabled := "", false
	if c != nil {
		hash, disabled = c.Secret, c.Disabled
	}
	right, err := l.guard.try(r, clientPrefix+upTo(id), secret, hash, disabled, known.cost)
	if err != nil {
		return nil, err
	}
	if !right {
		return nil, refusal{
			code:  http.StatusUnauthorized,
			kind:  invalidClient,
			text:  "the client is unknown, or its secret is wrong",
			basic: basic,
		}
	}
	return c, nil
}

func upTo(name string) string { return name[:min(len(name), maxName+1)] }

// password returns the user with that name and password. The error is the same for an unknown name and for a wrong
// password.
func (l *Login) password(r *http.Request, name, password string) (*User, error) {
	known := l.users.current.Load()
	u, hash, disabled := known.users[name], "", false
	if u != nil {
		hash, disabled = u.Password, u.Disabled
	}
	right, err := l.guard.try(r, upTo(name), password, hash, disabled, known.cost)
	if err != nil {
		return nil, err
	}
	if !right {
		return nil, bad(invalidGrant, "the user name or the password is wrong")
	}
	return u, nil
}

// tokens is the response to a grant.
type tokens struct {
	Access  string `json:"access_token"`
	Type    string `json:"token_type"`
	Expires int    `json:"expires_in"`
	Refresh string `json:"refresh_token,omitempty"`
}

func (l *Login) serveToken(w http.ResponseWriter, r *http.Request) {
	answered, err := l.grant(r)
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	answer(w, http.StatusOK, answered)
}

// grant carries out a request for tokens.
func (l *Login) grant(r *http.Request) (*tokens, error) {
	values, err := form(r)
	if err != nil {
		return nil, err
	}
	grants := map[string]func(*http.Request, url.Values, *Client) (*tokens, string, error){
		"password": l.byPassword, "refresh_token": l.byRefresh, "client_credentials": l.byClient,
		"authorization_code": l.byCode,
	}
	kind := values.Get("grant_type")
	grant := grants[kind]
	switch {
	case kind == "":
		return nil, bad(invalidRequest, "grant_type is missing")
	case grant == nil:
		return nil, bad(unsupportedGrant, "unsupported grant_type: use authorization_code, password, refresh_token or client_credentials")
	case values.Get("scope") != "":
		return nil, bad(invalidScope, "scopes are not supported: a token has all permissions of its user")
	}
	client, err := l.client(r, values)
	if err != nil {
		l.note(r, kind, values.Get("client_id"), err)
		return nil, err
	}
	answered, who, err := grant(r, values, client)
	l.note(r, kind, who, err)
	return answered, err
}

// need returns a required parameter.
func need(values url.Values, name string) (string, error) {
	if values.Get(name) == "" {
		return "", bad(invalidRequest, "%s is missing", name)
	}
	return values.Get(name), nil
}

func (l *Login) byPassword(r *http.Request, values url.Values, client *Client) (*tokens, string, error) {
	name, err := need(values, "username")
	if err != nil {
		return nil, "", err
	}
	password, err := need(values, "password")
	if err != nil {
		return nil, name, err
	}
	u, err := l.password(r, name, password)
	if err != nil {
		return nil, name, err
	}
	answered, err := l.begin(r, newTicket(), sessionOf(u, refreshing), client)
	return answered, name, err
}

// sessionOf returns a session of a user whose password has just been verified.
func sessionOf(u *User, kind string) *Session {
	return &Session{Type: kind, User: u.Name, UID: u.UID, Password: fingerprint(u.Password)}
}

// begin stores a session that can be refreshed, and returns its first tokens.
func (l *Login) begin(r *http.Request, t ticket, session *Session, client *Client) (*tokens, error) {
	session.Client = idOf(client)
	if err := l.sessions.create(r.Context(), t, session, l.options.IdleTimeout, l.options.SessionLifetime); err != nil {
		return nil, err
	}
	access, lifetime, err := l.issue(session, session.User)
	if err != nil {
		return nil, err
	}
	return &tokens{access, "Bearer", int(lifetime.Seconds()), t.String()}, nil
}

func (l *Login) byRefresh(r *http.Request, values url.Values, client *Client) (*tokens, string, error) {
	text, err := need(values, "refresh_token")
	if err != nil {
		return nil, "", err
	}
	refused := bad(invalidGrant, "the refresh token is wrong, has expired, was used before or revoked: sign in again")
	old, ok := parseTicket(text)
	if !ok {
		return nil, "", refused
	}
	who := ""
	session, next, err := l.sessions.use(r.Context(), old, refreshing, l.options.IdleTimeout, func(s *Session) error {
		who = s.User
		if s.Client != idOf(client) {
			return bad(invalidGrant, "the refresh token belongs to another client")
		}
		_, err := l.callerOf(r.Context(), s)
		return err
	}, true)
	switch {
	case errors.Is(err, errReused):
		l.sessions.seen.Remove(old.name())
		return nil, who, refused
	case errors.Is(err, errGone), errors.Is(err, errRefused):
		return nil, who, refused
	case err != nil:
		return nil, who, err
	}
	access, lifetime, err := l.issue(session, session.User)
	if err != nil {
		return nil, who, err
	}
	return &tokens{access, "Bearer", int(lifetime.Seconds()), next.String()}, who, nil
}

func idOf(c *Client) string {
	if c == nil {
		return ""
	}
	return c.ID
}

func (l *Login) byClient(r *http.Request, _ url.Values, client *Client) (*tokens, string, error) {
	switch {
	case client == nil:
		return nil, "", refusal{code: http.StatusUnauthorized, kind: invalidClient, text: "the client must authenticate", basic: true}
	case client.Secret == "" || len(client.Groups) == 0:
		return nil, client.ID, bad(unauthorized, "the client has no permissions of its own: it must have a secret and groups in the "+
			"user file")
	}
	session := &Session{Type: ofClient, User: client.ID, Client: client.ID, Password: fingerprint(client.Secret)}
	if err := l.sessions.create(r.Context(), newTicket(), session, l.options.TokenLifetime, l.options.TokenLifetime); err != nil {
		return nil, client.ID, err
	}
	access, lifetime, err := l.issue(session, clientPrefix+client.ID)
	if err != nil {
		return nil, client.ID, err
	}
	return &tokens{Access: access, Type: "Bearer", Expires: int(lifetime.Seconds())}, client.ID, nil
}

// serveRevoke ends the session of an access token or a refresh token. An unknown token is not an error (RFC 7009,
// section 2.2).
func (l *Login) serveRevoke(w http.ResponseWriter, r *http.Request) {
	err := l.revoke(r)
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (l *Login) revoke(r *http.Request) error {
	values, err := form(r)
	if err != nil {
		return err
	}
	text, err := need(values, "token")
	if err != nil {
		return err
	}
	client, err := l.client(r, values)
	if err != nil {
		return err
	}
	name, secret := "", ""
	if t, ok := parseTicket(text); ok {
		name, secret = t.name(), t.digest()
	} else if c, err := l.verify(text); c != nil && err == nil {
		name = c.Session
	}
	if name == "" {
		return nil
	}
	session, err := l.sessions.get(r.Context(), name)
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil:
		return err
	case session.Client != idOf(client):
		return bad(invalidGrant, "the token belongs to another client")
	case secret != "" && session.Type == ofPage:
		return nil // cookies cannot be revoked as tokens
	}
	l.note(r, "revoke", session.User, nil)
	return l.sessions.end(r.Context(), name)
}

func (l *Login) serveKeys(w http.ResponseWriter, r *http.Request) {
	data, err := jws.EncodeSet(l.options.Keys.Verifying())
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	_, _ = w.Write(data) // the client may have disconnected
}

// serveMetadata serves the authorization server metadata (RFC 8414).
func (l *Login) serveMetadata(w http.ResponseWriter, r *http.Request) {
	base := l.base(r)
	answer(w, http.StatusOK, map[string]any{
		"issuer":                                         l.issuerAt(r),
		"authorization_endpoint":                         base + authorizePath,
		"token_endpoint":                                 base + tokenPath,
		"revocation_endpoint":                            base + revokePath,
		"jwks_uri":                                       base + keysPath,
		"response_types_supported":                       []string{"code"},
		"grant_types_supported":                          []string{"authorization_code", "password", "refresh_token", "client_credentials"},
		"code_challenge_methods_supported":               []string{"S256"},
		"token_endpoint_auth_methods_supported":          []string{"none", "client_secret_basic", "client_secret_post"},
		"authorization_response_iss_parameter_supported": true,
	})
}

// issuerAt returns the issuer identifier, from which RFC 8414 derives the location of the metadata.
func (l *Login) issuerAt(r *http.Request) string { return l.base(r) + "/oauth" }

// base returns the public URL of the server: the configured one, or else the one of the request.
func (l *Login) base(r *http.Request) string {
	switch {
	case l.options.PublicURL != "":
		return l.options.PublicURL
	case r.TLS == nil:
		return "http://" + r.Host
	}
	return "https://" + r.Host
}

// sameChallenge reports whether verifier matches challenge by the method S256 of RFC 7636.
func sameChallenge(verifier, challenge string) bool {
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(encoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}
