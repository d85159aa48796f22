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
		"oldest version of TLS that is spoken: VersionTLS12 or VersionTLS13 (default VersionTLS12)",
	)
	flags.StringSliceVar(
		&o.CipherSuites,
		"tls-cipher-suites",
		nil,
		"cipher suites of TLS 1.2 that are spoken, by Go's names (default: Go's choice)",
	)
	flags.Int32SliceVar(
		&o.CurvePreferences,
		"tls-curve-preferences",
		nil,
		"key exchanges that are spoken, by the numbers of crypto/tls (default: Go's choice)",
	)
	flags.Var(cliflag.NewNamedCertKeyArray(&s.sni), "tls-sni-cert-key", "certificate and key for other names, as in "+
		"other.crt,other.key:*.example.com,example.com, besides those in the certificate; may be repeated (PEM)")
	flags.Lookup("tls-sni-cert-key").DefValue = "" // upstream's value prints an empty list
	flags.IntVar(&s.streams, "http2-max-streams-per-connection", 1000, "how many requests at once a client may have on one HTTP/2 connection")
	flags.BoolVar(&o.DisableHTTP2, "disable-http2-serving", false, "speak HTTP/1.1 only")
	flags.Float64Var(&o.GoawayChance, "goaway-chance", 0, "how likely a request over HTTP/2 has its client connect anew, so that a load "+
		"balancer may choose another server: 0 to 0.02")
	flags.StringVar(&o.ExternalHostname, "external-hostname", "", "name, with or without a port, that discovery tells clients, and that "+
		"the server's own certificate covers (default: the address)")
	flags.StringSliceVar(
		&o.AllowedOrigins,
		"cors-allowed-origins",
		nil,
		`regular expressions of origins whose pages may send requests from browsers, as in //example\.com(:|$)`,
	)
	flags.StringSliceVar(&o.StrictTransportSecurity, "strict-transport-security-directives", nil, "directives of the header "+
		"Strict-Transport-Security: max-age=SECONDS, includeSubDomains, preload (default: none, no header)")
	flags.StringSliceVar(&o.RefusedUserAgents, "refuse-user-agents", nil, "programs whose requests are refused, by what they call "+
		"themselves, such as kubectl (default: none)")
	flags.IntVar(&s.reads, "max-requests-inflight", 400, "how many requests that read are handled at once; others get 429; 0 bounds nothing")
	flags.IntVar(&s.mutating, "max-mutating-requests-inflight", 200, "how many requests that write are handled at once; 0 bounds nothing")
	flags.BoolVar(&o.Profiling, "profiling", false, "serve /debug/pprof and /debug/flags/v to callers who may get and put these paths")
	flags.BoolVar(&o.ContentionProfiling, "contention-profiling", false, "record blocking for --profiling; it costs time")
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
