package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/annexapi/annex/config"
)

// servingFlags are the flags of connections and request handling, with upstream's names and meanings.
type servingFlags struct {
	sni                      []cliflag.NamedCertKey
	streams, reads, mutating int
}

func (s *servingFlags) declare(flags *pflag.FlagSet, o *config.ServingOptions) {
	flags.StringVar(
		&o.MinTLSVersion,
		"tls-min-version",
		"",
		"minimum TLS version: VersionTLS12 or VersionTLS13 (default VersionTLS12)",
	)
	flags.StringSliceVar(
		&o.CipherSuites,
		"tls-cipher-suites",
		nil,
		"cipher suites for TLS 1.2, by their Go names (default: Go's choice)",
	)
	flags.Int32SliceVar(
		&o.CurvePreferences,
		"tls-curve-preferences",
		nil,
		"key exchanges for TLS, by their numbers in crypto/tls (default: Go's choice)",
	)
	flags.Var(cliflag.NewNamedCertKeyArray(&s.sni), "tls-sni-cert-key", "files with a certificate and key for SNI, and additional "+
		"names, as in other.crt,other.key:*.example.com,example.com; may be given several times (PEM)")
	flags.Lookup("tls-sni-cert-key").DefValue = "" // upstream's value prints an empty list
	flags.IntVar(&s.streams, "http2-max-streams-per-connection", 1000, "maximum number of concurrent requests on one HTTP/2 connection")
	flags.BoolVar(&o.DisableHTTP2, "disable-http2-serving", false, "serve only HTTP/1.1")
	flags.Float64Var(&o.GoawayChance, "goaway-chance", 0, "probability, from 0 to 0.02, that a request over HTTP/2 makes its client "+
		"reconnect, so that a load balancer can choose another server")
	flags.StringVar(&o.ExternalHostname, "external-hostname", "", "host name, with or without a port, for discovery and for the certificate "+
		"that the server creates (default: the address)")
	flags.StringSliceVar(
		&o.AllowedOrigins,
		"cors-allowed-origins",
		nil,
		`regular expressions of allowed CORS origins, as in //example\.com(:|$)`,
	)
	flags.StringSliceVar(&o.StrictTransportSecurity, "strict-transport-security-directives", nil, "directives of the header "+
		"Strict-Transport-Security: max-age=SECONDS, includeSubDomains, preload (default: no header)")
	flags.StringSliceVar(&o.RefusedUserAgents, "refuse-user-agents", nil, "names of programs in User-Agent headers, such as kubectl, whose "+
		"requests the server rejects (default: none)")
	flags.IntVar(&s.reads, "max-requests-inflight", 400, "maximum number of concurrent read requests; further requests get 429; 0 sets "+
		"no limit")
	flags.IntVar(&s.mutating, "max-mutating-requests-inflight", 200, "maximum number of concurrent write requests; further requests "+
		"get 429; 0 sets no limit")
	flags.BoolVar(&o.Profiling, "profiling", false, "serve /debug/pprof and /debug/flags/v to users who may get and put these paths")
	flags.BoolVar(&o.ContentionProfiling, "contention-profiling", false, "record blocking for --profiling; this slows the server down")
}

// complete copies the flags that were given into the options.
func (s *servingFlags) complete(flags *pflag.FlagSet, o *config.ServingOptions) error {
	for _, c := range s.sni {
		o.SNICertificates = append(o.SNICertificates, config.SNICertificate{CertFile: c.CertFile, KeyFile: c.KeyFile, Names: c.Names})
	}
	if s.streams < 1 { // in the options, 0 means the default
		return usage(fmt.Errorf("--http2-max-streams-per-connection %d is less than 1", s.streams))
	}
	o.MaxStreamsPerConnection = s.streams
	return errors.Join(
		changed(flags, "max-requests-inflight", &s.reads, &o.MaxRequestsInFlight),
		changed(flags, "max-mutating-requests-inflight", &s.mutating, &o.MaxMutatingRequestsInFlight),
	)
}
