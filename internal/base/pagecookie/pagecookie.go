// Package pagecookie knows the cookies of a server's own pages, which keep the signed-in user. Browsers send them to
// all paths of the server, but no handler or server behind these pages may see them, or set them.
package pagecookie

import (
	"net/http"
	"slices"
	"strings"
)

// The names of the cookies. Over TLS they have the prefix Host.
const (
	// Session is exchanged for tokens, Form is repeated by the form of the login page, and Provider holds the state
	// of a request to an identity provider.
	Session, Form, Provider = "annex-session", "annex-authorize", "annex-provider"

	Host = "__Host-"
)

// AtPort returns the name of a cookie of the server at a port.
func AtPort(name, port string) string { return name + "-" + port }

// isOwn reports whether a cookie, in the form of a header, belongs to the server's pages, or to those of a server at
// another port of the host.
func isOwn(cookie string) bool {
	name, _, _ := strings.Cut(cookie, "=")
	name = strings.TrimPrefix(strings.TrimSpace(name), Host)
	for _, own := range []string{Session, Form, Provider} {
		if rest, ok := strings.CutPrefix(name, own); ok && (rest == "" || rest[0] == '-' && strings.Trim(rest[1:], "0123456789") == "") {
			return true
		}
	}
	return false
}

// Hidden returns a request without these cookies, which is r itself if there are none. All other cookies stay
// unchanged.
func Hidden(r *http.Request) *http.Request {
	sent := r.Header["Cookie"]
	if !slices.ContainsFunc(sent, func(line string) bool { return slices.ContainsFunc(strings.Split(line, ";"), isOwn) }) {
		return r
	}
	var left []string
	for _, line := range sent {
		if others := strings.Join(slices.DeleteFunc(strings.Split(line, ";"), isOwn), ";"); strings.TrimSpace(others) != "" {
			left = append(left, strings.TrimSpace(others))
		}
	}
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	delete(r.Header, "Cookie")
	if len(left) > 0 {
		r.Header["Cookie"] = left
	}
	return r
}

// Refuse removes settings of these cookies from the header of another server's response.
func Refuse(h http.Header) {
	others := slices.DeleteFunc(h["Set-Cookie"], isOwn)
	if len(others) == 0 {
		delete(h, "Set-Cookie")
		return
	}
	h["Set-Cookie"] = others
}
