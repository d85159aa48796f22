package auth

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// localhost authenticates requests without credentials from programs on this machine as one user. It excludes
// requests that a page of another site could make a browser on this machine send, and requests that a proxy forwards
// for a remote client.
func localhost(info user.Info) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if !isLocal(r) {
			return nil, false, nil
		}
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{User: info, Audiences: audiences}, true, nil
	})
}

func isLocal(r *http.Request) bool {
	peer, _, err := net.SplitHostPort(r.RemoteAddr)
	// The client chooses the Host header. A foreign name belongs to a page whose name resolves to this machine, or to
	// a proxy.
	return err == nil && isLoopbackIP(peer) && isLoopbackHost(r.Host) && !hasCredentials(r) && !isPassedOn(r.Header)
}

func isLoopbackIP(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLoopbackHost reports whether a Host header, with or without a port, names the loopback.
func isLoopbackHost(host string) bool {
	name := host
	if n, port, err := net.SplitHostPort(host); err == nil {
		if strings.Trim(port, "0123456789") != "" {
			return false
		}
		name = n
	} else if inner, ok := strings.CutPrefix(host, "["); ok {
		if name, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(name, ":") {
			return false
		}
	}
	return strings.EqualFold(name, "localhost") || isLoopbackIP(name)
}

// hasCredentials reports whether a request has any credentials, valid or not.
func hasCredentials(r *http.Request) bool {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return true
	}
	for name, values := range r.Header {
		switch strings.ToLower(name) {
		case "authorization", "proxy-authorization":
			return true
		case "sec-websocket-protocol":
			if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "bearer.authorization.k8s.io") }) {
				return true
			}
		}
	}
	return false
}

// passedOn are headers, in lower case, that proxies add to requests, and browsers to requests of pages.
var passedOn = []string{
	"origin", "via", "forwarded", "forwarded-for", "x-real-ip", "x-client-ip", "client-ip", "x-cluster-client-ip", "true-client-ip",
	"cf-connecting-ip", "fastly-client-ip", "x-envoy-external-address", "x-appengine-user-ip", "x-proxyuser-ip",
}

// passedOnPrefixes are prefixes of such headers.
var passedOnPrefixes = []string{"x-forwarded-", "x-original-", "x-remote-"}

func isPassedOn(header http.Header) bool {
	for name, values := range header {
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if slices.Contains(passedOn, name) || slices.ContainsFunc(passedOnPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return true
		}
		// Browsers set this header to the origin of a request: the user, a page of this server, or another page.
		if name == "sec-fetch-site" && slices.ContainsFunc(values, func(v string) bool { return v != "none" && v != "same-origin" }) {
			return true
		}
	}
	return false
}
