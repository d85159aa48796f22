package login

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/annexapi/annex/internal/base/pagecookie"
)

// Pages hold no long-lived token. They have a cookie that scripts cannot read, and exchange it for a short-lived
// access token. Only these endpoints accept the cookie.

// cookieName is the name of the session cookie. Browsers accept the prefix __Host- only for a cookie that was set
// over TLS and for this host alone, so that another host cannot set it.
const cookieName = pagecookie.Session

// byTLS reports whether the browser has reached the server by TLS, directly or through a proxy that terminates TLS.
// Plain HTTP is assumed on loopback only, for which browsers know no certificates.
func byTLS(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return r.TLS != nil || !isLoopback(strings.Trim(host, "[]"))
}

// nameOf returns the name of a cookie for the origin of a request. Browsers share cookies between the ports of a host, but
// servers at other ports have sessions of their own.
func nameOf(r *http.Request, name string) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		name = pagecookie.AtPort(name, port)
	}
	if byTLS(r) {
		name = pagecookie.Host + name
	}
	return name
}

// cookie returns a cookie. An empty value returns a cookie that deletes the browser's.
func cookie(r *http.Request, name, value string, mode http.SameSite) *http.Cookie {
	c := &http.Cookie{Name: nameOf(r, name), Value: value, Path: "/", HttpOnly: true, SameSite: mode, Secure: byTLS(r)}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// cookieOf returns the value of a cookie, or an empty string if the cookie is missing or repeated.
func cookieOf(r *http.Request, name string) string {
	if all := r.CookiesNamed(nameOf(r, name)); len(all) == 1 {
		return all[0].Value
	}
	return ""
}

func forbidden(text string) error {
	return refusal{code: http.StatusForbidden, kind: invalidRequest, text: text}
}

// fromHere rejects requests that a page of another origin has sent. Browsers send Sec-Fetch-Site or Origin with every
// request that can modify state. A request without these headers comes from another program, and is accepted unless the
// endpoint requires them.
func (l *Login) fromHere(r *http.Request, told bool) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site != "" && site != "same-origin" {
		return forbidden("requests from pages of other origins are not allowed")
	}
	if origin == "" {
		if told && site == "" {
			return forbidden("the request has no Origin")
		}
		return nil
	}
	u, err := url.Parse(origin)
	same := err == nil && strings.EqualFold(u.Host, r.Host) && (u.Scheme == "https" || u.Scheme == "http" && !byTLS(r))
	if !same && (l.options.PublicURL == "" || origin != l.options.PublicURL) {
		return forbidden("requests from pages of other origins are not allowed")
	}
	return nil
}

// serveBegun answers with the name of the user whose session a function has begun.
func serveBegun(begin func(w http.ResponseWriter, r *http.Request) (user string, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, err := begin(w, r)
		if err != nil {
			refuse(w, refusalOf(r, err))
			return
		}
		answer(w, http.StatusOK, map[string]string{"user": name})
	}
}

// beginPage begins the session of a page by a name and a password.
func (l *Login) beginPage(w http.ResponseWriter, r *http.Request) (string, error) {
	if err := l.fromHere(r, false); err != nil {
		return "", err
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return "", refusal{code: http.StatusUnsupportedMediaType, kind: invalidRequest, text: "the body must be application/json"}
	}
	data, err := readBody(r)
	if err != nil {
		return "", err
	}
	var given struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := json.Unmarshal(data, &given); err != nil || given.Username == "" || given.Password == "" {
		return "", bad(invalidRequest, "the body must be an object with username and password")
	}
	u, err := l.password(r, given.Username, given.Password)
	if err == nil {
		err = l.startPage(w, r, sessionOf(u, ofPage), l.options.SessionLifetime)
	}
	l.note(r, ofPage, given.Username, err)
	return given.Username, err
}

// startPage stores a session and sets its cookie. It ends the session of the browser's previous cookie.
func (l *Login) startPage(w http.ResponseWriter, r *http.Request, session *Session, longest time.Duration) error {
	t := newTicket()
	if err := l.sessions.create(r.Context(), t, session, l.options.IdleTimeout, longest); err != nil {
		return err
	}
	if old, ok := parseTicket(cookieOf(r, cookieName)); ok {
		if err := l.endPage(r, old); err != nil {
			return err
		}
	}
	http.SetCookie(w, cookie(r, cookieName, t.String(), http.SameSiteStrictMode))
	return nil
}

// errSignedOut reports that the session of a page has ended.
var errSignedOut = refusal{code: http.StatusUnauthorized, kind: "login_required", text: "no session, or the session has ended: sign in"}

// ownPage returns the ticket of the cookie. It rejects requests that do not come from the server's own pages.
func (l *Login) ownPage(r *http.Request) (ticket, error) {
	if err := l.fromHere(r, true); err != nil {
		return ticket{}, err
	}
	if r.Header.Get("X-Annex-Session") != "1" {
		return ticket{}, forbidden("the header X-Annex-Session: 1 is missing")
	}
	t, ok := parseTicket(cookieOf(r, cookieName))
	if !ok {
		return t, errSignedOut
	}
	return t, nil
}

// serveSessionToken issues an access token to a page.
func (l *Login) serveSessionToken(w http.ResponseWriter, r *http.Request) {
	t, err := l.ownPage(r)
	var session *Session
	if err == nil {
		session, err = l.usePage(r.Context(), t)
	}
	if errors.Is(err, errGone) || errors.Is(err, errRefused) || errors.Is(err, errReused) {
		http.SetCookie(w, cookie(r, cookieName, "", http.SameSiteStrictMode))
		err = errSignedOut
	}
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	access, lifetime, err := l.issue(session, session.User)
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	answer(w, http.StatusOK, map[string]any{"access_token": access, "expires_in": int(lifetime.Seconds()), "user": session.User})
}

// usePage returns the session of a page, and extends it.
func (l *Login) usePage(ctx context.Context, t ticket) (*Session, error) {
	may := func(s *Session) error {
		_, err := l.callerOf(ctx, s)
		return err
	}
	session, err := l.sessions.get(ctx, t.name())
	if err == nil && (session.ByToken || len(session.Certificate) > 0) {
		// Authentication may read from the storage, and so precedes the update.
		if err := may(session); err != nil {
			return nil, err
		}
		may = func(*Session) error { return nil }
	}
	if err != nil {
		return nil, err
	}
	session, _, err = l.sessions.use(ctx, t, ofPage, l.options.IdleTimeout, may, false)
	return session, err
}

// serveEnd ends the session of a page, and with it all tokens of the session.
func (l *Login) serveEnd(w http.ResponseWriter, r *http.Request) {
	t, err := l.ownPage(r)
	if err == nil {
		err = l.endPage(r, t)
	}
	if err != nil && !errors.Is(err, errSignedOut) {
		refuse(w, refusalOf(r, err))
		return
	}
	http.SetCookie(w, cookie(r, cookieName, "", http.SameSiteStrictMode))
	w.WriteHeader(http.StatusNoContent)
}

// endPage ends the session of a ticket if the session belongs to a page.
func (l *Login) endPage(r *http.Request, t ticket) error {
	session, err := l.sessions.get(r.Context(), t.name())
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil:
		return err
	case session.Type != ofPage:
		return nil
	}
	l.note(r, "end", session.User, nil)
	return l.sessions.end(r.Context(), t.name())
}
