package streams

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	utilproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/annexapi/annex/internal/base/outcome"
	"github.com/annexapi/annex/internal/base/pagecookie"
)

// Backend is the destination of forwarded requests.
type Backend struct {
	URL  *url.URL
	TLS  *tls.Config
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Header replaces the client's headers of the same names.
	Header http.Header
}

const (
	dialing    = 30 * time.Second
	handshakes = 10 * time.Second
)

// transport returns a transport for a single request. Connections are not reused, and use HTTP/1.1, so that they can
// be upgraded.
func (b Backend) transport() *http.Transport {
	dial := b.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialing}).DialContext
	}
	config := b.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	config.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: handshakes,
		DisableKeepAlives:   true,
		DisableCompression:  true,
	}
}

// Remote returns a command that an agent runs. The agent speaks SPDY like kubelet.
func Remote(b Backend, wanted RequestedStreams) Run {
	return func(ctx context.Context, command Command) error {
		transport := b.transport()
		defer transport.CloseIdleConnections()
		upgrader, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: transport, PingPeriod: pingPeriod})
		if err != nil {
			return fmt.Errorf("connect with the agent: %w", err)
		}
		executor, err := remotecommand.NewSPDYExecutorRejectRedirects(
			headerTransport{upgrader, b.Header},
			clientspdy.NewUpgraderForStreaming(upgrader),
			http.MethodPost,
			b.URL,
		)
		if err != nil {
			return fmt.Errorf("connect with the agent: %w", err)
		}
		options := remotecommand.StreamOptions{Tty: wanted.TTY}
		if wanted.Stdin {
			options.Stdin = command.Stdin
		}
		if wanted.Stdout {
			options.Stdout = command.Stdout
		}
		if wanted.Stderr && !wanted.TTY {
			options.Stderr = command.Stderr
		}
		if wanted.TTY {
			options.TerminalSizeQueue = sizeQueue{ctx, command.Resize}
		}
		err = executor.StreamWithContext(ctx, options)
		var status apierrors.APIStatus
		if _, exited := exitCode(err); err == nil || exited || errors.As(err, &status) {
			return err
		}
		return unavailable(fmt.Errorf("connect with the agent: %w", err))
	}
}

// Query returns the query parameters for streams, with the names of the options of pods.
func Query(wanted RequestedStreams) url.Values {
	query := url.Values{}
	query.Set("stdin", strconv.FormatBool(wanted.Stdin))
	query.Set("stdout", strconv.FormatBool(wanted.Stdout))
	query.Set("stderr", strconv.FormatBool(wanted.Stderr))
	query.Set("tty", strconv.FormatBool(wanted.TTY))
	return query
}

// headerTransport sets headers.
type headerTransport struct {
	http.RoundTripper
	header http.Header
}

func (a headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = utilnet.CloneRequest(r)
	for name, values := range a.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return a.RoundTripper.RoundTrip(r)
}

// sizeQueue forwards terminal sizes.
type sizeQueue struct {
	ctx    context.Context
	resize <-chan remotecommand.TerminalSize
}

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	select {
	case size, ok := <-q.resize:
		if ok {
			return &size
		}
	case <-q.ctx.Done():
	}
	return nil
}

// ServeRemoteForward forwards a port-forward request to an agent, which speaks SPDY like kubelet. Every byte counts
// as use of the session, including pings.
func ServeRemoteForward(w http.ResponseWriter, r *http.Request, refuse Refuse, limits Limits, b Backend) {
	if !httpstream.IsUpgradeRequest(r) || !wsstream.IsWebSocketRequest(r) && !isSPDY(r) {
		refused(w, r, refuse, notServed(r))
		return
	}
	serve := b.serve
	if wsstream.IsWebSocketRequest(r) {
		if !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
			refused(w, r, refuse, apierrors.NewBadRequest("unable to upgrade: port forwarding requires SPDY, directly or in a WebSocket"))
			return
		}
		serve = func(w http.ResponseWriter, r *http.Request, refuse Refuse, location *url.URL) {
			utilproxy.NewTunnelingHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b.serve(w, r, refuse, location)
			})).ServeHTTP(w, r)
		}
	}
	hand(w, r, refuse, limits, b.URL, serve)
}

// ServeProxy forwards a request to a backend, with the rest of its path after the subresource. The resulting path
// cannot leave the backend's own path.
func ServeProxy(w http.ResponseWriter, r *http.Request, refuse Refuse, limits Limits, b Backend, rest string) {
	location := *b.URL
	if rest != "" {
		location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path.Clean("/"+rest)+trailing(rest))
	}
	location.RawPath = ""
	location.RawQuery = r.URL.RawQuery
	hand(w, r, refuse, limits, &location, func(w http.ResponseWriter, r *http.Request, refuse Refuse, location *url.URL) {
		prefix := strings.TrimSuffix(r.URL.Path, rest)
		b.serveBy(&rebasingTransport{b.transport(), b.URL, prefix, r.URL.EscapedPath()}, w, r, refuse, location)
	})
}

// rebasingTransport is the transport to a backend that clients see at the path of the subresource.
type rebasingTransport struct {
	*http.Transport
	backend *url.URL
	prefix  string // the path of the subresource
	asked   string // the path of the request
}

func (t *rebasingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = utilnet.CloneRequest(r)
	r.Header.Set("X-Forwarded-Uri", t.asked)
	response, err := t.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	pagecookie.Refuse(response.Header)
	for name := range response.Header {
		if strings.HasPrefix(name, "Access-Control-Allow-") {
			delete(response.Header, name) // it would apply to this server, not the backend
		}
	}
	// Upstream puts the prefix before the path of a redirect, so remove the backend's own path.
	if to, err := url.Parse(response.Header.Get("Location")); err == nil && (to.Host == "" || to.Host == t.backend.Host) {
		base := strings.TrimSuffix(t.backend.Path, "/")
		if rest, below := strings.CutPrefix(to.Path, base); below && base != "" && (rest == "" || strings.HasPrefix(rest, "/")) {
			to.Path, to.RawPath = rest, ""
			if rest == "" {
				to.Path = "/"
			}
			response.Header.Set("Location", to.String())
		}
	}
	return response, nil
}

// trailing returns the trailing slash of a path, which path.Clean removes.
func trailing(path string) string {
	if strings.HasSuffix(path, "/") {
		return "/"
	}
	return ""
}

// hand forwards a request within a session. The session ends upgraded connections; other requests end by themselves.
func hand(
	w http.ResponseWriter,
	r *http.Request,
	refuse Refuse,
	limits Limits,
	location *url.URL,
	serve func(http.ResponseWriter, *http.Request, Refuse, *url.URL),
) {
	result := outcome.Succeeded
	failed := func(err error) {
		result = outcome.Failed
		refuse(unavailable(err))
	}
	if !httpstream.IsUpgradeRequest(r) {
		ctx, cancel := r.Context(), context.CancelFunc(func() {})
		if limits.Total > 0 {
			ctx, cancel = context.WithTimeout(ctx, limits.Total)
		}
		defer cancel()
		serve(w, r.WithContext(ctx), failed, location)
		outcome.Set(r.Context(), result)
		return
	}
	s := newSession(r.Context(), limits)
	defer s.end()
	serve(sessionWriter{takeover{w, s}}, r.WithContext(s.ctx), failed, location)
	if ended := s.result(nil); result == outcome.Succeeded {
		result = ended
	}
	if result == outcome.Gone { // clients close a connection when they have finished
		result = outcome.Succeeded
	}
	outcome.Set(r.Context(), result)
}

// sessionWriter is a response writer whose hijacked connection is closed when its session ends.
type sessionWriter struct{ takeover }

func (p sessionWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := p.takeover.Hijack()
	if err != nil {
		return nil, nil, err
	}
	s := p.session
	context.AfterFunc(s.ctx, s.close)
	s.begin(nil)
	return trackedConn{conn, s}, buffered, nil
}

// trackedConn records every read and write as use of the session, because the protocol on the connection is unknown.
type trackedConn struct {
	net.Conn
	session *session
}

func (c trackedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.session.use()
	}
	return n, err
}

func (c trackedConn) Write(p []byte) (int, error) {
	c.session.use()
	return c.Conn.Write(p)
}

// serve forwards one request to an agent.
func (b Backend) serve(w http.ResponseWriter, r *http.Request, refuse Refuse, location *url.URL) {
	b.serveBy(&rebasingTransport{b.transport(), b.URL, "", r.URL.EscapedPath()}, w, r, refuse, location)
}

func (b Backend) serveBy(t *rebasingTransport, w http.ResponseWriter, r *http.Request, refuse Refuse, location *url.URL) {
	defer t.CloseIdleConnections()
	r = utilnet.CloneRequest(r)
	cleanHeader(r.Header)
	r.Header.Set("X-Forwarded-Host", r.Host)
	r.Header.Set("X-Forwarded-Proto", map[bool]string{false: "http", true: "https"}[r.TLS != nil])
	for name, values := range b.Header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	handler := proxy.NewUpgradeAwareHandler(
		location,
		&proxy.Transport{PathPrepend: t.prefix, RoundTripper: t},
		false,
		false,
		responder(refuse),
	)
	handler.UseLocationHost = true
	handler.ServeHTTP(w, r)
}

// WrappedRoundTripper returns the transport that dials upgraded connections.
func (t *rebasingTransport) WrappedRoundTripper() http.RoundTripper { return t.Transport }

// responder answers errors of a proxy.
type responder Refuse

func (r responder) Error(_ http.ResponseWriter, _ *http.Request, err error) { r(err) }

// unavailable returns the error for an unreachable backend, in upstream's words.
func unavailable(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
}

// hops are headers that apply to one connection.
var hops = []string{"Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding"}

// cleanHeader removes headers that are only for this server: all forms of the caller's credentials, and headers about
// the connection. An Upgrade header is kept only if the request is an upgrade request: otherwise the upgrade has not
// been authorized.
func cleanHeader(h http.Header) {
	upgrade := ""
	if httpstream.IsUpgradeRequest(&http.Request{Header: h}) {
		upgrade = h.Get("Upgrade")
	}
	for _, name := range listed(h.Values("Connection")) {
		if !strings.EqualFold(name, "Upgrade") {
			h.Del(name)
		}
	}
	h.Del("Connection")
	h.Del("Upgrade")
	if upgrade != "" {
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", upgrade)
	}
	for name := range h {
		lower := strings.ToLower(name)
		if lower == "authorization" || strings.HasPrefix(lower, "impersonate-") || strings.HasPrefix(lower, "x-remote-") ||
			slices.Contains(hops, name) {
			delete(h, name)
		}
	}
	protocols := listed(h.Values(wsstream.WebSocketProtocolHeader))
	kept := slices.DeleteFunc(
		slices.Clone(protocols),
		func(p string) bool { return strings.HasPrefix(p, "base64url.bearer.authorization.k8s.io.") },
	)
	if len(kept) < len(protocols) {
		h.Del(wsstream.WebSocketProtocolHeader)
		if len(kept) > 0 {
			h.Set(wsstream.WebSocketProtocolHeader, strings.Join(kept, ", "))
		}
	}
}
