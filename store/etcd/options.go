package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// DefaultPrefix is the default prefix of keys in etcd, the same as kube-apiserver's.
const DefaultPrefix = "/registry"

// Options configure the connection to etcd and its use. The comments name the kube-apiserver flag for the same
// setting, if there is one.
type Options struct {
	// Endpoints are the URLs of the cluster's members, with a port, all with the same scheme: https://, or http://
	// for loopback addresses, or unix:// with the path of a socket. There is at least one.
	Endpoints []string
	// Prefix begins all keys. Servers that share an etcd but are not replicas of each other need different prefixes.
	// "" means DefaultPrefix, "/" means none (--etcd-prefix).
	Prefix string
	// CAFile is a file with the certificates, in PEM, of the authorities that sign the members' certificates. ""
	// means the operating system's roots.
	CAFile string
	// CertFile and KeyFile are the files of the certificate and the key, in PEM, with which this server identifies
	// itself; both or none. They are read anew for each connection (--etcd-certfile, --etcd-keyfile).
	CertFile, KeyFile string
	// Plaintext permits http:// for addresses other than loopback. Everyone on the network path can then read and
	// change everything.
	Plaintext bool
	// CompactionInterval is the time between two compactions of etcd's history, and the minimum age of the history
	// kept. It applies to the whole of etcd, not only to keys with Prefix; replicas share the work. 0 means 5
	// minutes; a negative value leaves compaction to etcd or another program (--etcd-compaction-interval, where 0
	// does that).
	CompactionInterval time.Duration
	// HealthcheckTimeout is the time that etcd has to answer a health probe; two probes are sent in this time. 0
	// means 2 seconds (--etcd-healthcheck-timeout).
	HealthcheckTimeout time.Duration
	// LeaseReuse is the time for which objects with a lifetime may share one lease, and so the longest delay of an
	// expiry. It is rounded to seconds. 0 means one minute (--lease-reuse-duration-seconds).
	LeaseReuse time.Duration
	// NoWatchCache reads and watches etcd directly for every request (--watch-cache=false).
	NoWatchCache bool
	// StartTimeout is the time that Open waits for etcd. With 0, Open does not wait and never gives up: a server is
	// alive, but not ready, until etcd can be reached.
	StartTimeout time.Duration
	// Logger receives a message when etcd stops answering, repeats it at intervals, and receives another when etcd
	// answers again. Nil is silent.
	Logger *slog.Logger
}

// Validate returns the first mistake in the options. It reads the certificate files, but does not connect to etcd.
func (o Options) Validate() error {
	if len(o.Endpoints) == 0 {
		return errors.New("no etcd endpoints: set the URLs of the members with etcd.Options.Endpoints, as in https://etcd-1:2379")
	}
	scheme := ""
	for _, endpoint := range o.Endpoints {
		u, err := parseEndpoint(endpoint)
		if err != nil {
			if _, host, secret := strings.Cut(endpoint, "@"); secret {
				endpoint = "...@" + host
			}
			return fmt.Errorf("etcd endpoint %q: %w", endpoint, err)
		}
		if u.Scheme == "http" && !o.Plaintext && !loopback(u.Hostname()) {
			return fmt.Errorf("etcd endpoint %q: connections would not be encrypted: use https, or permit plain text explicitly", endpoint)
		}
		if scheme != "" && u.Scheme != scheme {
			return fmt.Errorf("etcd endpoint %q: all endpoints must have the same scheme, and another endpoint has %s", endpoint, scheme)
		}
		scheme = u.Scheme
	}
	if scheme != "https" && o.CAFile+o.CertFile+o.KeyFile != "" {
		return fmt.Errorf("etcd endpoint %q: the certificate files would not be used: use https, or remove them", o.Endpoints[0])
	}
	for _, wait := range []struct {
		field string
		value time.Duration
	}{{"HealthcheckTimeout", o.HealthcheckTimeout}, {"LeaseReuse", o.LeaseReuse}, {"StartTimeout", o.StartTimeout}} {
		if wait.value < 0 {
			return fmt.Errorf("etcd.Options.%s %v is negative", wait.field, wait.value)
		}
	}
	_, err := o.tlsConfig()
	return err
}

func parseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("not a URL like https://etcd-1:2379")
	}
	switch u.Scheme {
	case "unix":
		if u.Host+u.Path == "" {
			return nil, errors.New("no path of a socket")
		}
		return u, nil
	case "http", "https":
	default:
		return nil, fmt.Errorf("unknown scheme %q: use https://, http:// for loopback addresses, or unix://", u.Scheme)
	}
	switch {
	case u.Hostname() == "":
		return nil, errors.New("no host")
	case u.Port() == "":
		return nil, errors.New("the port is missing; it is usually 2379")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, errors.New("must have only a scheme, a host and a port")
	}
	return u, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// tlsConfig returns nil for endpoints without TLS.
func (o Options) tlsConfig() (*tls.Config, error) {
	if !strings.HasPrefix(o.Endpoints[0], "https:") {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd's certificate authority: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd's certificate authority: %s has no certificate in PEM", o.CAFile)
		}
	}
	switch {
	case o.CertFile == "" && o.KeyFile == "":
		return config, nil
	case o.CertFile == "" || o.KeyFile == "":
		return nil, errors.New("client certificate for etcd: certificate file and key file must be set together")
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate for etcd: %s and %s: %w", o.CertFile, o.KeyFile, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.CompactionInterval == 0 {
		o.CompactionInterval = storagebackend.DefaultCompactInterval
	}
	if o.HealthcheckTimeout == 0 {
		o.HealthcheckTimeout = storagebackend.DefaultHealthcheckTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// config returns the configuration of upstream's store, without the resource.
func (o Options) config() storagebackend.Config {
	config := storagebackend.NewDefaultConfig(o.Prefix, nil)
	config.Transport.ServerList = o.Endpoints
	config.Transport.TrustedCAFile = o.CAFile
	config.Transport.CertFile = o.CertFile
	config.Transport.KeyFile = o.KeyFile
	config.CompactionInterval = max(o.CompactionInterval, 0)
	config.LeaseManagerConfig = etcd3.NewDefaultLeaseManagerConfig()
	if seconds := int64(o.LeaseReuse.Round(time.Second) / time.Second); o.LeaseReuse != 0 {
		config.LeaseManagerConfig.ReuseDurationSeconds = max(seconds, 1)
	}
	return *config
}

// healthKey returns a key at which no object is stored.
func (o Options) healthKey() string { return path.Join("/", o.Prefix, "health") }
