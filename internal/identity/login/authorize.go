package login

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/annexapi/annex/internal/base/pagecookie"
)

const (
	// codeLifetime bounds the time between issuing a code and its exchange.
	codeLifetime = time.Minute
	// csrfName is the name of the cookie whose value the form has to repeat.
	csrfName = pagecookie.Form
	// maxState is the largest state of a client, in bytes, that is carried through the sign-in.
	maxState = 2 << 10
)

// authorization is a valid request for a code.
type authorization struct {
	client           *Client
	redirect         string
	state, challenge string
}

// pageError is an error that is shown to the user and not sent to the client, because the redirect URI is not
// known to belong to the client.
type pageError struct{ error }

// authorizationOf reads and checks a request (RFC 6749, section 4.1.1, and RFC 7636, section 4.3).
func (l *Login) authorizationOf(values url.Values) (*authorization, error) {
	known := l.users.current.Load()
	client := known.clients[values.Get("client_id")]
	redirect := values.Get("redirect_uri")
	switch {
	case len(values["client_id"]) > 1 || len(values["redirect_uri"]) > 1:
		return nil, pageError{bad(invalidRequest, "client_id or redirect_uri is set twice")}
	case client == nil || client.Disabled:
		return nil, pageError{bad(invalidRequest, "the client is unknown")}
	case !slices.Contains(client.RedirectURIs, redirect):
		return nil, pageError{bad(invalidRequest, "the client did not register the redirect_uri")}
	}
	a := &authorization{client: client, redirect: redirect, state: values.Get("state"), challenge: values.Get("code_challenge")}
	digest, err := encoding.DecodeString(a.challenge)
	switch {
	case single(values) != nil:
		return a, single(values)
	case len(a.state) > maxState:
		a.state = ""
		return a, bad(invalidRequest, "state has more than %d bytes", maxState)
	case values.Get("response_type") != "code":
		return a, bad("unsupported_response_type", "the response_type must be code")
	case values.Get("scope") != "":
		return a, bad(invalidScope, "scopes are not supported: a token has all permissions of its user")
	case values.Get("code_challenge_method") != "S256":
		return a, bad(invalidRequest, "code_challenge_method must be S256")
	case err != nil || len(digest) != sha256.Size:
		return a, bad(invalidRequest, "code_challenge is not an S256 digest")
	}
	return a, nil
}

// back redirects the browser to the client, with pairs as query parameters.
func (l *Login) back(w http.ResponseWriter, r *http.Request, a *authorization, pairs ...string) {
	u, err := url.Parse(a.redirect)
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	query := u.Query()
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	if a.state != "" {
		query.Set("state", a.state)
	}
	query.Set("iss", l.issuerAt(r))
	u.RawQuery = query.Encode()
	w.Header().Set("Location", u.String())
	w.WriteHeader(http.StatusSeeOther)
}

// checked reads the request. It answers invalid requests itself and then returns false.
func (l *Login) checked(w http.ResponseWriter, r *http.Request, values url.Values) (*authorization, bool) {
	a, err := l.authorizationOf(values)
	var hidden pageError
	switch {
	case errors.As(err, &hidden):
		e := refusalOf(r, hidden.error)
		l.show(w, e.code, pageData{Title: l.options.Title, Message: e.text, Broken: true})
	case err != nil:
		e := refusalOf(r, err)
		l.back(w, r, a, "error", e.kind, "error_description", plain(e.text))
	default:
		return a, true
	}
	return nil, false
}

// serveAuthorize shows the sign-in page of a client's authorization request.
func (l *Login) serveAuthorize(w http.ResponseWriter, r *http.Request) {
	a, ok := l.checked(w, r, r.URL.Query())
	if !ok {
		return
	}
	var random [16]byte
	rand.Read(random[:])
	token := encoding.EncodeToString(random[:])
	http.SetCookie(w, cookie(r, csrfName, token, http.SameSiteStrictMode))
	l.ask(w, http.StatusOK, a, token, "", "")
}

// serveAuthorized handles the submitted form: it signs the user in and redirects to the client with a code.
func (l *Login) serveAuthorized(w http.ResponseWriter, r *http.Request) {
	values, err := form(r)
	if err == nil {
		err = l.fromHere(r, false)
	}
	if err != nil {
		e := refusalOf(r, err)
		l.show(w, e.code, pageData{Title: l.options.Title, Message: e.text, Broken: true})
		return
	}
	a, ok := l.checked(w, r, values)
	if !ok {
		return
	}
	token := cookieOf(r, csrfName)
	if token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(values.Get("csrf"))) != 1 {
		l.show(
			w,
			http.StatusForbidden,
			pageData{
				Title:   l.options.Title,
				Message: "The login was not started in this browser, or it has expired: go back to the application.",
				Broken:  true,
			},
		)
		return
	}
	name := values.Get("username")
	u, err := l.password(r, name, values.Get("password"))
	t := newTicket()
	if err == nil {
		code := sessionOf(u, ofCode)
		code.Client, code.RedirectURI, code.Challenge = a.client.ID, a.redirect, a.challenge
		err = l.sessions.create(r.Context(), t, code, codeLifetime, codeLifetime)
	}
	l.note(r, "authorize", name, err)
	if err != nil {
		e := refusalOf(r, err)
		if e.after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(e.after))
		}
		l.ask(w, e.code, a, token, upTo(name), e.text)
		return
	}
	http.SetCookie(w, cookie(r, csrfName, "", http.SameSiteStrictMode))
	l.back(w, r, a, "code", t.String())
}

// byCode exchanges a code for the tokens of a session.
func (l *Login) byCode(r *http.Request, values url.Values, client *Client) (*tokens, string, error) {
	if client == nil {
		return nil, "", bad(invalidRequest, "client_id is missing")
	}
	text, err := need(values, "code")
	if err != nil {
		return nil, "", err
	}
	verifier, err := need(values, "code_verifier")
	if err != nil {
		return nil, "", err
	}
	refused := bad(invalidGrant, "the code is wrong, has expired or was used before, or the verifier or the redirect_uri does not match "+
		"the authorization request")
	code, ok := parseTicket(text)
	if !ok {
		return nil, "", refused
	}
	t, who := newTicket(), ""
	session, err := l.sessions.exchange(r.Context(), code, t.name(), func(s *Session) error {
		who = s.User
		if s.Client != client.ID || s.RedirectURI != values.Get("redirect_uri") || !sameChallenge(verifier, s.Challenge) {
			return errGone
		}
		_, err := l.callerOf(r.Context(), s)
		return err
	})
	switch {
	case errors.Is(err, errGone), errors.Is(err, errReused), errors.Is(err, errRefused):
		return nil, who, refused
	case err != nil:
		return nil, who, err
	}
	answered, err := l.begin(r, t, &Session{Type: refreshing, User: session.User, UID: session.UID, Password: session.Password}, client)
	if err == nil {
		err = l.sessions.confirm(r.Context(), code, t.name())
	}
	switch {
	case errors.Is(err, errReused):
		return nil, who, refused
	case err != nil:
		return nil, who, err
	}
	return answered, who, nil
}

// pageData is the input of the page template.
type pageData struct {
	Title, Client, Name, Message string
	// Broken leaves out the form.
	Broken bool
	Hidden []hidden
}

type hidden struct{ Name, Value string }

const style = `body{font:16px/1.5 ` +
	`system-ui,sans-serif;margin:0;display:grid;min-height:100vh;place-items:center;background:Canvas;color:CanvasText;color-scheme:light ` +
	`dark}main{width:20rem;max-width:90vw}label{display:block;margin-top:1rem}input,` +
	`button{font:inherit;width:100%;box-sizing:border-box;padding:.5rem}button{margin-top:1.5rem}p[role=alert]{border-left:.25rem solid ` +
	`#c33;padding-left:.75rem}`

const markup = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign in to {{.Title}}</title><style>` + style +
	`</style></head>
<body><main>
<h1>{{.Title}}</h1>
{{if .Message}}<p role="alert">{{.Message}}</p>{{end}}
{{if not .Broken}}<p>Sign in, and {{.Client}} may act for you.</p>
<form method="post" action="/oauth/authorize">
{{range .Hidden}}<input type="hidden" name="{{.Name}}" value="{{.Value}}">
{{end}}<label for="username">User name</label>
<input id="username" name="username" value="{{.Name}}" autocomplete="username" autocapitalize="none" required autofocus>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button>Sign in</button>
</form>{{end}}
</main></body>
</html>
`

// ask shows the form.
func (l *Login) ask(w http.ResponseWriter, code int, a *authorization, csrf, name, message string) {
	f := pageData{Title: l.options.Title, Client: a.client.ID, Name: name, Message: message, Hidden: []hidden{
		{"csrf", csrf}, {"response_type", "code"}, {"client_id", a.client.ID}, {"redirect_uri", a.redirect},
		{"state", a.state}, {"code_challenge", a.challenge}, {"code_challenge_method", "S256"},
	}}
	l.show(w, code, f, a.redirect)
}

// show writes the page. Its Content-Security-Policy names the targets, because browsers follow the redirect that
// answers a form only to sources in form-action.
func (l *Login) show(w http.ResponseWriter, code int, f pageData, targets ...string) {
	allowed := "'self'"
	for _, target := range targets {
		if u, err := url.Parse(target); err == nil {
			source := u.Scheme + ":"
			if u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") {
				source += "//" + u.Host
			}
			allowed += " " + source
		}
	}
	sum := sha256.Sum256([]byte(style))
	w.Header().
		Set("Content-Security-Policy", "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'; form-action "+
			allowed+"; frame-ancestors 'none'; base-uri 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	var page strings.Builder
	if err := l.page.Execute(&page, f); err != nil {
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(code)
	_, _ = w.Write([]byte(page.String())) // the browser may have disconnected
}

// newPage returns the template of the page.
func newPage() *template.Template { return template.Must(template.New("authorize").Parse(markup)) }
