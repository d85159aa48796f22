package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/annexapi/annex/config"
)

// Serving is the configuration for HTTPS, with its certificate files opened.
type Serving struct {
	options config.ServingOptions
	ciphers []uint16
	curves  []tls.CurveID
	version uint16
	names   []dynamiccertificates.SNICertKeyContentProvider
}

// OpenServing reads the certificates of the options, which must be complete. The caller must call Close.
func OpenServing(o config.ServingOptions) (*Serving, error) {
	s := &Serving{options: o}
	var err error
	if s.version, err = cliflag.TLSVersion(o.MinTLSVersion); err != nil {
		return nil, fmt.Errorf("Options.Serving.MinTLSVersion: %w", err)
	}
	if s.ciphers, err = cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
		return nil, fmt.Errorf("Options.Serving.CipherSuites: %w", err)
	}
	if s.curves, err = cliflag.TLSCurvePreferences(o.CurvePreferences); err != nil {
		return nil, fmt.Errorf("Options.Serving.CurvePreferences: %w", err)
	}
	for _, c := range o.SNICertificates {
		// Upstream's provider cannot be released if it finds an error, so the files are checked before.
		_, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		var provider *dynamiccertificates.DynamicFileSNIContent
		if err == nil {
			provider, err = dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", c.CertFile, c.KeyFile, c.Names...)
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("Options.Serving.SNICertificates %s with key %s: %w", c.CertFile, c.KeyFile, err)
		}
		s.names = append(s.names, provider)
	}
	return s, nil
}

// Close releases the certificate providers. All listeners must have been shut down.
func (s *Serving) Close() {
	// The providers hold queues from their creation on, and release them when their Run returns.
	ended, end := context.WithCancel(context.Background())
	end()
	for _, name := range s.names {
		if runner, ok := name.(dynamiccertificates.ControllerRunner); ok {
			runner.Run(ended, 1)
		}
	}
}

// TLS serves HTTPS on a listener until Shutdown, which then waits for at most grace. Changed certificates are read
// again.
func (s *Serving) TLS(
	l net.Listener,
	handler http.Handler,
	serving dynamiccertificates.CertKeyContentProvider,
	clients dynamiccertificates.CAContentProvider,
	grace time.Duration,
) (*Listening, error) {
	listening := newListening(l)
	info := &server.SecureServingInfo{
		Listener:                     listening.connections,
		Cert:                         serving,
		SNICerts:                     s.names,
		ClientCA:                     clients,
		MinTLSVersion:                s.version,
		CipherSuites:                 s.ciphers,
		CurvePreferences:             s.curves,
		HTTP2MaxStreamsPerConnection: s.options.MaxStreamsPerConnection,
		DisableHTTP2:                 s.options.DisableHTTP2,
	}
	var err error
	if listening.idle, listening.closed, err = info.Serve(listening.connections.counting(handler), grace, listening.stop); err != nil {
		return nil, fmt.Errorf("serve HTTPS: %w", err)
	}
	return listening, nil
}

// Config returns a configuration equal to that of TLS, for a listener that is not the server's own. It follows
// changes of the certificate and of the authorities, but not of the files for other names.
func (s *Serving) Config(
	serving dynamiccertificates.CertKeyContentProvider,
	clients dynamiccertificates.CAContentProvider,
) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: s.version, CipherSuites: s.ciphers, CurvePreferences: s.curves,
		// Authentication verifies the client certificate for each request.
		ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}
	if s.options.DisableHTTP2 {
		config.NextProtos = config.NextProtos[1:]
	}
	current := dynamiccertificates.NewDynamicServingCertificateController(config, clients, serving, s.names, nil)
	if err := current.RunOnce(); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	var mu sync.Mutex
	follow := config.Clone()
	follow.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		// RunOnce compares with the current state. After an error, the previous certificates stay in use.
		_ = current.RunOnce()
		mu.Unlock()
		return current.GetConfigForClient(hello)
	}
	return follow, nil
}

// withBrowsers lets pages of the allowed origins send requests. Browsers send a preflight request before most of
// them, without credentials, and withBrowsers answers it. Beyond upstream's headers, pages may send the entity tag of a
// query's page, and read the headers that clients act on.
func withBrowsers(handler http.Handler, o config.ServingOptions) http.Handler {
	allowed := []string{
		"Content-Type", "Content-Length", "Accept-Encoding", "X-CSRF-Token", "Authorization", "X-Requested-With", "If-Modified-Since",
		"If-None-Match",
	}
	exposed := []string{"Date", "ETag", "Retry-After", "Warning"}
	return serverfilters.WithCORS(withWholeWatches(handler), o.AllowedOrigins, nil, allowed, exposed, "true")
}

// withWholeWatches sends pages of browsers their watches without compression. A compressed watch is a series of gzip members, one for
// each flush, of which browsers decode the first only: a page would wait for all later events. Pages cannot refuse gzip themselves.
func withWholeWatches(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" {
			if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb == "watch" {
				r.Header.Del("Accept-Encoding")
			}
		}
		next.ServeHTTP(w, r)
	})
}

// withConnectionAdvice advises clients how to connect the next time: HSTS headers, and GOAWAY frames at random.
func withConnectionAdvice(handler http.Handler, o config.ServingOptions) http.Handler {
	handler = serverfilters.WithHSTS(handler, o.StrictTransportSecurity)
	if o.GoawayChance > 0 && !o.DisableHTTP2 {
		handler = serverfilters.WithProbabilisticGoaway(handler, o.GoawayChance)
	}
	return handler
}

// originPatterns compiles the patterns of the allowed origins, which have been validated before.
func originPatterns(o config.ServingOptions) []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, pattern := range o.AllowedOrigins {
		if compiled, err := regexp.Compile(pattern); err == nil {
			all = append(all, compiled)
		}
	}
	return all
}

// refuseAnonymousDebugging refuses anonymous requests for profiles, which reveal the contents of memory, and for
// queued requests. Anonymous callers may have permission for the paths.
func refuseAnonymousDebugging(r *http.Request, _ *request.RequestInfo) (*http.Request, error) {
	if r.URL.Path != "/debug" && !strings.HasPrefix(r.URL.Path, "/debug/") {
		return r, nil
	}
	if caller, ok := request.UserFrom(r.Context()); !ok || caller.GetName() == user.Anonymous {
		return nil, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("anonymous users may not debug the server"))
	}
	return r, nil
}
