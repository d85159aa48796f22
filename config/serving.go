package config

// ServingOptions say how connections are answered. They have the meanings of upstream's servers.
type ServingOptions struct {
	// MinTLSVersion is VersionTLS12, the default, or VersionTLS13.
	MinTLSVersion string
	// CipherSuites are those of TLS 1.2 that are spoken, by Go's names; nil is Go's choice. TLS
	// 1.3 chooses by itself.
	CipherSuites []string
	// CurvePreferences are the key exchanges that are spoken, by the numbers of crypto/tls; nil is
	// Go's choice.
	CurvePreferences []int32
	// SNICertificates are shown instead of the serving certificate to clients that ask for their
	// names. They are read again when they change.
	SNICertificates []SNICertificate
	// MaxStreamsPerConnection is how many requests at once a client may have on one HTTP/2
	// connection; 1000 if 0.
	MaxStreamsPerConnection int
	// DisableHTTP2 speaks HTTP/1.1 only.
	DisableHTTP2 bool
	// GoawayChance is how likely, from 0 to 0.02, a request over HTTP/2 has its client open another
	// connection afterwards, so that a load balancer may choose another server for it.
	GoawayChance float64

	// ExternalHostname is the name, with or without a port, that discovery tells clients, and that
	// the certificate covers that the server makes. By default it is the address that the server
	// listens on. Of a server that does not listen, it is where its handler is served, as
	// 127.0.0.1:8443: its URL, and the kubeconfig that is written then, lead there.
	ExternalHostname string
	// AllowedOrigins are regular expressions of origins whose pages may send requests from
	// browsers, and open WebSockets. They match a part of an origin, and so have to say where its
	// host begins, by ^ or //, and where it ends, by $ or :. Nil is none.
	AllowedOrigins []string
	// StrictTransportSecurity are the directives of the header of that name: max-age=SECONDS,
	// includeSubDomains and preload. Nil sends none.
	StrictTransportSecurity []string

	// MaxRequestsInFlight and MaxMutatingRequestsInFlight are how many requests that read and that
	// write are handled at once; 400 and 200 if 0, any number if negative. Watches, connections and
	// members of system:masters do not count. An eighth is reserved for members of system:masters, leases and health
	// checks; a user that has requests in flight gets no more places than stay free, so that one user
	// alone gets half of the rest. As many requests as there are places wait for one, 15 seconds at most, and get 429 then. With
	// Options.PriorityAndFairness, the priority levels
	// share their sum.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int

	// RefusedUserAgents are programs whose requests are refused with 403, but for those for health:
	// what their User-Agent begins with, before a slash or a space, such as kubectl. Programs
	// call themselves what they like: it is against mistakes, not against attackers. Nil is none.
	RefusedUserAgents []string

	// Profiling serves /debug/pprof and /debug/flags/v to callers who may get, and put, these paths;
	// never to anonymous ones.
	Profiling bool
	// ContentionProfiling records blocking, in the whole process. It costs time.
	ContentionProfiling bool
}

// SNICertificate is a certificate for some names.
type SNICertificate struct {
	CertFile, KeyFile string
	// Names are host names, which may begin with *., and IP addresses, besides those in the
	// certificate.
	Names []string
}
