package apitest_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	legacyv1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
	sessions "github.com/annexapi/annex/stream"
)

// streaming is a server whose widgets have all sessions of pods, with a handler of its own.
func streaming() annex.Server {
	server := shop()
	server.Groups[0].Kinds[0] = widgets().Subresources(
		sessions.Exec("exec", func(ctx context.Context, _ *sessions.ExecRequest[v1.Widget], s sessions.Streams) error {
			fmt.Fprintln(s.Stdout, "begun")
			<-ctx.Done()
			return ctx.Err()
		}),
		sessions.Attach("attach", func(ctx context.Context, _ *sessions.AttachRequest[v1.Widget], s sessions.Streams) error {
			fmt.Fprintln(s.Stdout, "begun")
			<-ctx.Done()
			return ctx.Err()
		}),
		sessions.PortForward("portforward", func(context.Context, *sessions.PortForwardRequest[v1.Widget], int32) (net.Conn, error) {
			return nil, io.EOF
		}),
	)
	server.Groups = append(server.Groups, annex.Group{Name: "legacy.example.com", Kinds: []annex.Kind{
		annex.KindOf[legacyv1.Gizmo, legacyv1.GizmoList]("gizmos", legacyv1.API).Subresources(
			sessions.Logs("log", func(ctx context.Context, _ *sessions.LogRequest[legacyv1.Gizmo]) (io.ReadCloser, error) {
				reader, writer := io.Pipe()
				go func() {
					fmt.Fprintln(writer, "begun")
					<-ctx.Done()
					writer.CloseWithError(ctx.Err())
				}()
				return reader, nil
			}),
		),
	}})
	server.Handlers = append(server.Handlers, annex.Handler{
		Path: "/orders/", LongRunning: func(r *http.Request) bool { return r.URL.Path == "/orders/stream" },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "begun")
			if r.URL.Path == "/orders/stream" {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		}),
	})
	return server
}

// createStreaming creates the objects whose sessions tests open.
func (c *client) createStreaming() {
	c.t.Helper()
	c.create("w")
	c.post(gizmosPath, `{"apiVersion":"legacy.example.com/v1","kind":"Gizmo","metadata":{"name":"w"}}`).want(201)
}

// presented is a browser's way of authenticating: with the credentials that the browser adds, and with the page's
// own.
type presented struct {
	name        string
	certificate bool
	header      string // Authorization
	protocol    string // a token among the subprotocols of a WebSocket
	cookie      bool   // of a session of the server's pages
}

func (p presented) headers(cookie string, socket bool, protocol string) []string {
	var all []string
	if p.header != "" {
		all = append(all, "Authorization", p.header)
	}
	if socket && p.protocol != "" {
		protocol += ", base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(p.protocol))
	}
	if socket {
		all = append(
			all,
			"Connection",
			"Upgrade",
			"Upgrade",
			"websocket",
			"Sec-Websocket-Version",
			"13",
			"Sec-Websocket-Key",
			"AAAAAAAAAAAAAAAAAAAAAA==",
			"Sec-Websocket-Protocol",
			protocol,
		)
	}
	if p.cookie {
		all = append(all, "Cookie", cookie)
	}
	return all
}

// A browser sends its certificate and cookies along with requests of a page on another port of the same host. Such a
// request only succeeds with a token, and only if the server authenticated it by that token.
func TestBrowsers_credentialOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	instance, _ := run(
		t,
		streaming(),
		annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), Login: annex.LoginOptions{UserFile: userFile(t)}},
	)
	admin := clientOf(t, instance).http1()
	admin.createStreaming()
	elsewhere := httptest.NewTLSServer(http.NotFoundHandler()) // the page's own server, on another port
	defer elsewhere.Close()
	stranger := admin.stranger("")
	signed := stranger.post("/oauth/session", map[string]string{"username": "alice", "password": "wonderland"}, "Origin", instance.URL()).
		want(200)
	cookie, _, _ := strings.Cut(signed.header.Get("Set-Cookie"), ";")

	type transport struct {
		name, method, path string
		socket             bool
		protocol           string
		body               string
		safe               bool // the page cannot read the response, and nothing happens
	}
	transports := []transport{
		{name: "exec", method: "GET", path: widgetsPath + "/w/exec?command=true&stdout=true", socket: true, protocol: "v5.channel.k8s.io"},
		{name: "attach", method: "GET", path: widgetsPath + "/w/attach?stdout=true", socket: true, protocol: "v5.channel.k8s.io"},
		{name: "portforward", method: "GET", path: widgetsPath + "/w/portforward", socket: true, protocol: "SPDY/3.1+portforward.k8s.io"},
		{name: "watch by WebSocket", method: "GET", path: widgetsPath + "?watch=1", socket: true, protocol: "binary.k8s.io"},
		{name: "tail by WebSocket", method: "GET", path: "/query/shop.example.com/v1/widgets?watch=true", socket: true, protocol: "events"},
		{name: "log", method: "GET", path: gizmosPath + "/w/log?follow=true", safe: true},
		{name: "watch", method: "GET", path: widgetsPath + "?watch=1", safe: true},
		{name: "tail by events", method: "GET", path: "/query/shop.example.com/v1/widgets?watch=true", safe: true},
		{name: "list", method: "GET", path: widgetsPath, safe: true},
		{name: "query", method: "GET", path: "/query/shop.example.com/v1/widgets", safe: true},
		{name: "form", method: "POST", path: widgetsPath, body: "a=b"},
		{name: "fetch", method: "PATCH", path: widgetsPath + "/w", body: "{}"},
		{name: "query by form", method: "POST", path: "/query/shop.example.com/v1/widgets", body: "a=b"},
		{name: "handler", method: "POST", path: "/orders/1", body: "a=b"},
	}
	root := "Bearer root"
	for _, credentials := range []struct {
		presented
		// token reports whether the token authenticates the request; known whether any credential does.
		token, known bool
	}{
		{presented{name: "certificate", certificate: true}, false, true},
		{presented{name: "certificate and a token that is wrong", certificate: true, header: "Bearer wrong", protocol: "wrong"}, false, true},
		{presented{name: "certificate and a token", certificate: true, header: root, protocol: "root"}, false, true},
		{presented{name: "certificate and Basic", certificate: true, header: "Basic cm9vdDpyb290"}, false, true},
		{presented{name: "certificate and cookie", certificate: true, cookie: true}, false, true},
		{presented{name: "token", header: root}, true, true},
		{presented{name: "token and cookie", header: root, cookie: true}, true, true},
		{presented{name: "token of a subprotocol", protocol: "root"}, true, true},
		{presented{name: "cookie", cookie: true}, false, false},
		{presented{name: "token that is wrong", header: "Bearer wrong", protocol: "wrong"}, false, false},
	} {
		c := stranger
		if credentials.certificate {
			c = admin
		}
		for _, at := range transports {
			if credentials.name == "token of a subprotocol" && !at.socket {
				continue
			}
			for _, from := range []struct {
				name    string
				headers []string
				own     bool
			}{
				{"its own page", []string{"Origin", instance.URL(), "Sec-Fetch-Site", "same-origin"}, true},
				{"its own page, an older browser", []string{"Origin", instance.URL()}, true},
				{"another port", []string{"Origin", elsewhere.URL, "Sec-Fetch-Site", "same-site"}, false},
				{"another port, an older browser", []string{"Origin", elsewhere.URL}, false},
				{"another port, without an origin", []string{"Sec-Fetch-Site", "same-site"}, false},
				{"another name of the loopback", []string{"Origin", strings.Replace(instance.URL(), "127.0.0.1", "localhost", 1)}, false},
				{"another site", []string{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site"}, false},
			} {
				if at.socket && from.headers[0] != "Origin" {
					continue // all browsers name the origin of a request that opens a WebSocket
				}
				headers := slices.Concat(from.headers, credentials.headers(cookie, at.socket, at.protocol))
				if at.body != "" {
					headers = append(headers, "Content-Type", "text/plain")
				}
				got := answeredWith(c, at.method, at.path, at.body, headers)
				refused := !from.own && !at.safe && !credentials.token
				switch {
				case !credentials.known && got != http.StatusUnauthorized:
					t.Errorf("%s with %s of %s: %d, the caller is not known", at.name, credentials.name, from.name, got)
				case credentials.known && refused != (got == http.StatusForbidden):
					t.Errorf("%s with %s of %s: %d", at.name, credentials.name, from.name, got)
				}
			}
		}
	}
	// Logins are rejected for other pages, whatever they present, and pages are shown to all.
	for _, path := range []string{"/oauth/session", "/oauth/session/token", "/oauth/token", "/oauth/authorize"} {
		for _, c := range []*client{admin, stranger} {
			headers := []string{
				"Origin",
				elsewhere.URL,
				"Sec-Fetch-Site",
				"same-site",
				"Cookie",
				cookie,
				"Content-Type",
				"text/plain",
				"Authorization",
				"Basic Y2k6d29uZGVybGFuZA==",
			}
			if got := answeredWith(c, "POST", path, "{}", headers); got != http.StatusForbidden {
				t.Errorf("POST %s of another port: %d", path, got)
			}
		}
	}
	if got := answeredWith(admin, "GET", "/console/", "", []string{"Sec-Fetch-Site", "cross-site"}); got != http.StatusOK {
		t.Errorf("a link to the console: %d", got)
	}
	if got := answeredWith(
		admin,
		"POST",
		"/console/",
		"a=b",
		[]string{"Origin", elsewhere.URL, "Sec-Fetch-Site", "same-site"},
	); got != http.StatusForbidden {
		t.Errorf("a form to the console: %d", got)
	}
}

// answeredWith sends a request and returns the code of the response without reading it.
func answeredWith(c *client, method, path, body string, headers []string) int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.config.Host+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
