package stream_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/stream"
)

// site returns a backend that answers with the requests it gets.
func site(t *testing.T) *url.URL {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/base/headers", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		var lines []string
		for name, values := range r.Header {
			lines = append(lines, name+": "+strings.Join(values, ","))
		}
		slices.Sort(lines)
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	})
	mux.HandleFunc("/base/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/base/there", http.StatusFound) })
	mux.HandleFunc("/base/cookie", func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "c", Value: "1"})
		http.SetCookie(w, &http.Cookie{Name: "__Host-annex-session", Value: "theirs", Path: "/", Secure: true})
		w.Header().Set("Access-Control-Allow-Origin", "*")
	})
	mux.HandleFunc("/base/upgrade", func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(
			conn,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Query: %s\r\nX-Auth: %s\r\n\r\n",
			r.URL.RawQuery,
			r.Header.Get("Authorization"),
		)
		_, _ = io.Copy(conn, buffered)
	})
	mux.HandleFunc("/base/nameless", func(w http.ResponseWriter, _ *http.Request) { // upgrades unasked
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s?%s %q %v %v", r.Method, r.URL.Path, r.URL.RawQuery, body, r.TransferEncoding, err)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL + "/base")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func proxyTo(u *url.URL) *stream.ProxyBuilder[v1.Widget] {
	return stream.Proxy("proxy", func(context.Context, *stream.ProxyRequest[v1.Widget]) (*stream.Backend, error) {
		return &stream.Backend{URL: u, BearerToken: "agent's", Header: http.Header{"X-Mine": {"1"}}}, nil
	})
}

// ask sends a request and does not follow redirects.
func ask(t *testing.T, config *rest.Config, method, path string, body io.Reader, header http.Header) (*http.Response, string) {
	t.Helper()
	config = rest.CopyConfig(config)
	if header.Get("Upgrade") != "" {
		config.NextProtos = []string{"http/1.1"}
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, config.Host+widgetsPath+"/"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response, ""
	}
	defer utilnet.CloseIdleConnectionsFor(transport)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response, string(raw)
}

func TestProxy_requests(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(proxyTo(site(t))))
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", "w/proxy", "", `GET /base? "" [] <nil>`},
		{"GET", "w/proxy/", "", `GET /base/? "" [] <nil>`},
		{"GET", "w/proxy/a/b?x=1&x=2", "", `GET /base/a/b?x=1&x=2 "" [] <nil>`},
		{"GET", "w/proxy/a/", "", `GET /base/a/? "" [] <nil>`},
		{"GET", "w/proxy/a/%2e%2e/%2e%2e/%2e%2e/etc", "", `GET /base/etc? "" [] <nil>`},
		{"GET", "w/proxy?path=/elsewhere", "", `GET /base?path=/elsewhere "" [] <nil>`},
		{"POST", "w/proxy/p", "body", `POST /base/p? "body" [chunked] <nil>`},
		{"PUT", "w/proxy/p", "body", `PUT /base/p? "body" [chunked] <nil>`},
		{"PATCH", "w/proxy/p", "body", `PATCH /base/p? "body" [chunked] <nil>`},
		{"DELETE", "w/proxy/p", "", `DELETE /base/p? "" [] <nil>`},
		{"OPTIONS", "w/proxy/p", "", `OPTIONS /base/p? "" [] <nil>`},
		{"HEAD", "w/proxy/p", "", ``},
	} {
		var body io.Reader
		if test.body != "" {
			body = io.NopCloser(strings.NewReader(test.body)) // of unknown length
		}
		if response, got := ask(t, config, test.method, test.path, body, nil); got != test.want || response.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s %s", test.method, test.path, response.Status, got)
		}
	}
}

func TestProxy_credentials_areRemoved(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(proxyTo(site(t))))
	_, got := ask(t, config, http.MethodGet, "w/proxy/headers", nil, http.Header{
		"Impersonate-User": nil, "X-Remote-User": {"root"}, "X-Remote-Extra-A": {"a"}, "Impersonate-Extra-A": nil, "X-Mine": {"forged"},
		"Proxy-Authorization": {"secret"}, "Cookie": {"a=b; __Host-annex-session=stolen"}, "X-Other": {"kept"},
	})
	for _, want := range []string{"Authorization: Bearer agent's\n", "X-Mine: 1\n", "X-Other: kept\n", "Cookie: a=b\n",
		"X-Forwarded-Proto: https\n", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Uri: " + widgetsPath + "/w/proxy/headers\n",
		"X-Forwarded-Host: 127.0.0.1:", "Host: 127.0.0.1:"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, bad := range []string{"Impersonate", "X-Remote", "Proxy-Authorization", "root", "secret", "forged", "annex-session"} {
		if strings.Contains(got, bad) {
			t.Errorf("%s in:\n%s", bad, got)
		}
	}
}

func TestProxy_responses(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(proxyTo(site(t))))
	if response, _ := ask(
		t,
		config,
		http.MethodGet,
		"w/proxy/redirect",
		nil,
		nil,
	); response.StatusCode != http.StatusFound ||
		response.Header.Get("Location") != widgetsPath+"/w/proxy/there" {
		t.Errorf("redirect: %s to %s", response.Status, response.Header.Get("Location"))
	}
	response, _ := ask(t, config, http.MethodGet, "w/proxy/cookie", nil, nil)
	if !slices.Equal(response.Header["Set-Cookie"], []string{"c=1"}) || response.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("got %v", response.Header)
	}
}

func TestProxy_upgrade(t *testing.T) { // alone: it counts goroutines
	config := startWidgets(t, widgets(proxyTo(site(t))))
	response, got := ask(t, config, http.MethodGet, "w/proxy/upgrade?x=1", nil, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}})
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("X-Query") != "x=1" ||
		response.Header.Get("X-Auth") != "Bearer agent's" {
		t.Fatalf("%s %v %s", response.Status, response.Header, got)
	}
	conn := response.Body.(io.ReadWriteCloser)
	lines := bufio.NewReader(conn)
	for _, line := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); got != line {
			t.Errorf("got %q, %v", got, err)
		}
	}
	conn.Close()
	if response, got := ask(
		t,
		config,
		http.MethodGet,
		"w/proxy/headers",
		nil,
		http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}},
	); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a backend that does not upgrade: %s %s", response.Status, got)
	}
	nothingIsLeft(t)
}

func TestProxy_unreachableBackend_is503(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	nowhere := func(name string, b *stream.Backend, err error) *stream.ProxyBuilder[v1.Widget] {
		return stream.Proxy(name, func(context.Context, *stream.ProxyRequest[v1.Widget]) (*stream.Backend, error) { return b, err })
	}
	config := startWidgets(t, widgets(
		nowhere("down", &stream.Backend{URL: &url.URL{Scheme: "http", Host: closed.Addr().String()}}, nil),
		nowhere("none", nil, nil),
		nowhere("odd", &stream.Backend{URL: &url.URL{Scheme: "ftp", Host: "x"}}, nil),
		nowhere("failed", nil, errors.New("no idea where")),
		nowhere("gone", nil, apierrors.NewResourceExpired("it is stopped")),
	))
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"w/down/x":   {503, "error trying to reach service: "},
		"w/none/":    {500, "the backend has no http or https URL"},
		"w/odd/":     {500, "the backend has no http or https URL"},
		"w/failed/":  {500, "no idea where"},
		"w/gone/":    {410, "it is stopped"},
		"none/down/": {404, `widgets.shop.example.com \"none\" not found`},
	} {
		for _, header := range []http.Header{nil, {"Connection": {"Upgrade"}, "Upgrade": {"echo"}}} {
			if response, got := ask(
				t,
				config,
				http.MethodGet,
				path,
				nil,
				header,
			); response.StatusCode != want.code || !strings.Contains(got, want.text) ||
				!strings.Contains(got, `"kind":"Status"`) {
				t.Errorf("%s, %v: %s %s", path, header, response.Status, got)
			}
		}
	}
}
