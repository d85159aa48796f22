package config

// ServingOptions configure how connections are served. They mean the same as upstream's flags.
type ServingOptions struct {
	// MinTLSVersion is VersionTLS12, the default, or VersionTLS13.
	MinTLSVersion string
	// CipherSuites are the enabled cipher suites of TLS 1.2, by Go's names; nil is Go's choice. Those of TLS 1.3
	// cannot be configured.
	CipherSuites []string
	// CurvePreferences are the enabled key exchanges, by the numbers of crypto/tls; nil is Go's choice.
	CurvePreferences []int32
	// SNICertificates are presented in place of the serving certificate to clients that ask for one of their names.
	// They are read again when they change.
	SNICertificates []SNICertificate
	// MaxStreamsPerConnection bounds the concurrent requests of a client on one HTTP/2 connection; 0 means 1000.
	MaxStreamsPerConnection int
	// DisableHTTP2 serves HTTP/1.1 only.
	DisableHTTP2 bool
	// GoawayChance is the probability, from 0 to 0.02, that a request over HTTP/2 makes its client open another
	// connection afterwards, so that a load balancer may choose another server for it.
	GoawayChance float64

	// ExternalHostname is the name, with or without a port, that discovery reports to clients, and for which the
	// server's own certificate is valid. If empty, it is the address on which the server listens. For a server that
	// does not listen, it is the address at which its handler is served, such as 127.0.0.1:8443: the server's URL,
	// and the kubeconfig that is written then, lead there.
	ExternalHostname string
	// AllowedOrigins are regular expressions of origins whose pages may send requests from browsers, and open
	// WebSockets. An expression matches any part of an origin; therefore it has to mark where the host begins, by ^
	// or //, and where it ends, by $ or :. Nil allows none.
	AllowedOrigins []string
	// StrictTransportSecurity holds the directives of the header of that name: max-age=SECONDS, includeSubDomains and
	// preload. Nil sends no such header.
	StrictTransportSecurity []string

	// MaxRequestsInFlight and MaxMutatingRequestsInFlight bound the reads and the writes in flight; 0 means 400 and
	// 200, a negative value sets no bound. Watches, connections and members of system:masters do not count. An eighth
	// is reserved for members of system:masters, leases and health checks. A user with requests in flight gets no
	// more places than stay free, so that a single user gets half of the rest. Up to as many requests as there are
	// places wait for a place, 15 seconds at most, and then get 429. With Options.PriorityAndFairness, the priority
	// levels share the sum of both.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int

	// RefusedUserAgents are programs whose requests are refused with 403, except for health: the beginning of their
	// User-Agent, up to a slash or a space, such as kubectl. Programs choose their User-Agent themselves, so this
	// stops mistakes, not attackers. Nil refuses none.
	RefusedUserAgents []string

	// Profiling serves /debug/pprof and /debug/flags/v to callers who may get, and put, these paths, but never to
	// anonymous callers.
	Profiling bool
	// ContentionProfiling records blocking in the whole process, which costs time.
	ContentionProfiling bool
}

// SNICertificate is a certificate for some names.
type SNICertificate struct {
	CertFile, KeyFile string
	// Names are host names, which may begin with *., and IP addresses, in addition to those in the certificate.
	Names []string
}
