package auth

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestLocalhost(t *testing.T) {
	t.Parallel()
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	subject := NewAuthenticator(Credentials{Tokens: []authenticator.Token{LoopbackTokens("inner")}, Localhost: admin})
	is := func(r *http.Request) string {
		response, ok, _ := subject.AuthenticateRequest(r)
		if !ok {
			return ""
		}
		return response.User.GetName()
	}
	request := func(peer, host string, headers ...string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/apis", nil)
		r.RemoteAddr, r.Host = peer, host
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
		}
		return r
	}
	const peer, host = "127.0.0.1:40000", "127.0.0.1:6080"
	for _, r := range []*http.Request{
		request(peer, host),
		request("[::1]:40000", "[::1]:6080"),
		request("[::1]:40000", "[::1]"),
		request("[::ffff:127.0.0.1]:40000", host),
		request("127.8.7.6:40000", "127.8.7.6"),
		request(peer, "localhost"),
		request(peer, "LocalHost:6080"),
		request(peer, host, "User-Agent", "curl/8", "Accept", "*/*"),
		request(peer, host, "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"), // typed by the user
		request(peer, host, "Sec-Fetch-Site", "same-origin"),
		request(peer, host, "Sec-Websocket-Protocol", "v5.channel.k8s.io"),
	} {
		if got := is(r); got != "admin" {
			t.Errorf("from %s to %s with %v: %q", r.RemoteAddr, r.Host, r.Header, got)
		}
	}
	for _, r := range []*http.Request{
		// Other machines.
		request("192.0.2.1:40000", host), request("10.0.0.1:1", "localhost"), request("[fe80::1%lo]:1", "localhost"),
		request("[2001:db8::1]:1", "[::1]"),
		request("[::ffff:192.0.2.1]:1", host), request("0.0.0.0:1", host), request("", host), request("@", host), request("127.0.0.1", host),
		request("localhost:1", host), request("/run/annex.sock", host),
		// Names that may resolve to this machine: DNS rebinding, proxies.
		request(peer, "evil.example.com"), request(peer, "evil.example.com:6080"), request(peer, "127.0.0.1.evil.example.com:6080"),
		request(peer, "localhost.evil.example.com"),
		request(peer, "evil.localhost"), request(peer, "localhost."), request(peer, "192.0.2.1:6080"), request(peer, "0.0.0.0:6080"),
		request(peer, "[::]:6080"), request(peer, "2130706433"), request(peer, "127.1"), request(peer, "0177.0.0.1"),
		request(peer, ""), request(peer, "127.0.0.1:6080:1"), request(peer, "localhost:evil"), request(peer, "[localhost]"),
		request(peer, "[127.0.0.1]"), request(peer, "[::1"), request(peer, "user@localhost"), request(peer, "localhost/evil"),
		request(peer, "[fe80::1%25lo]:6080"),
		// Pages of other sites.
		request(peer, host, "Origin", "http://evil.example.com"), request(peer, host, "Origin", "null"),
		request(peer, host, "Origin", "http://127.0.0.1:6080"), request(peer, host, "Origin", ""),
		request(peer, host, "Sec-Fetch-Site", "cross-site"), request(peer, host, "Sec-Fetch-Site", "same-site"),
		request(peer, host, "Sec-Fetch-Site", ""), request(peer, host, "Sec-Fetch-Site", "none", "Sec-Fetch-Site", "cross-site"),
		// Proxies.
		request(peer, host, "X-Forwarded-For", "127.0.0.1"), request(peer, host, "X-Forwarded-Host", "localhost"),
		request(peer, host, "X-Forwarded-Proto", "https"), request(peer, host, "X-Forwarded-For", ""),
		request(peer, host, "x-forwarded-for", "127.0.0.1"), request(peer, host, "X_Forwarded_For", "127.0.0.1"),
		request(peer, host, "Forwarded", "for=127.0.0.1"), request(peer, host, "Via", "1.1 proxy"),
		request(peer, host, "X-Real-Ip", "127.0.0.1"), request(peer, host, "X-Original-Forwarded-For", "192.0.2.1"),
		request(peer, host, "True-Client-Ip", "192.0.2.1"), request(peer, host, "Cf-Connecting-Ip", "192.0.2.1"),
		request(peer, host, "X-Remote-User", "admin"), request(peer, host, "X-Remote-Group", "system:masters"),
		// Requests with credentials, which are not anonymous.
		request(peer, host, "Authorization", "Bearer wrong"), request(peer, host, "Authorization", "Basic YWRtaW46YWRtaW4="),
		request(peer, host, "Authorization", ""), request(peer, host, "authorization", "x"),
		request(peer, host, "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io.d3Jvbmc, v5.channel.k8s.io"),
		request(peer, host, "Proxy-Authorization", "Basic x"),
	} {
		if got := is(r); got != "" {
			t.Errorf("from %s to %q with %v: let in as %q", r.RemoteAddr, r.Host, r.Header, got)
		}
	}
	stranger := request(peer, host)
	stranger.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{clientCertificate(t, openCerts(t))}}
	if got := is(stranger); got != "" {
		t.Errorf("with another authority's certificate: let in as %q", got)
	}
	secure := request(peer, host)
	secure.TLS = &tls.ConnectionState{}
	if got := is(secure); got != "admin" {
		t.Errorf("over TLS without a certificate: %q", got)
	}
	if got := is(request("192.0.2.1:1", host, "Authorization", "Bearer inner")); got != user.APIServerUser {
		t.Errorf("with a token from elsewhere: %q", got)
	}
	off := NewAuthenticator(Credentials{})
	if _, ok, _ := off.AuthenticateRequest(request(peer, host)); ok {
		t.Error("it is on by default")
	}
}
