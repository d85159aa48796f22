// Package certs provides the certificates of a standalone server: an authority, a serving certificate, a client
// certificate for the administrator, and a kubeconfig. It creates them on the first start and renews them in time, so
// that the first kubectl command needs no certificate tool.
//
// All keys are ECDSA P-256. Generating RSA keys would take most of a server's start-up time.
//
// # Files
//
// The folder contains ca, server and admin, and with Options.FrontProxy also front-proxy-ca and front-proxy-client,
// each as <name>.key (0600) and <name>.crt. Keys are never replaced. A certificate is reissued for its key when less
// than a third of its lifetime is left; the serving certificate also when it does not cover a requested host. Because
// the authority keeps its key and subject, its renewed and its old certificate verify the same certificates: existing
// kubeconfigs stay valid.
//
// Each step replaces a single file atomically, so a crash at any moment leaves a folder that the next start
// completes. Any other problem with a file is an error that names the file. Nothing is overwritten to repair it.
//
// The folder also contains users, with a copy of each certificate that Users has issued, as <serial number>.crt;
// their keys are not kept. The revocation list ca.crl is signed by the authority, and .lock is locked while it is
// written.
package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/base/await"
)

const (
	// AdminUser is the user name in the administrator's client certificate.
	AdminUser = "annex-admin"
	// AdminGroup is the group in the administrator's client certificate, which may do everything.
	AdminGroup = "system:masters"
	// ProxyUser is the user name in the client certificate that the server presents to the servers behind it.
	ProxyUser = "front-proxy-client"

	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// checkInterval bounds the delay of a renewal after the machine was suspended, during which timers do not
	// advance.
	checkInterval = time.Hour
)

// Options configure Open. The zero value keeps certificates for this machine in memory.
type Options struct {
	// Dir is the folder of keys and certificates. It is created (0700) if missing. One server at a time may use it,
	// and any number of Users. Empty keeps everything in memory: then each Open creates a new authority.
	Dir string

	// Hosts are IP addresses and DNS names that the serving certificate has to cover besides localhost, 127.0.0.1,
	// ::1 and the host name of the machine. Unspecified addresses (0.0.0.0, ::) are ignored.
	Hosts []string

	// CertFile and KeyFile are a serving certificate of the user, which replaces the generated one. The files are
	// reloaded when they change. Either both or neither must be set.
	CertFile, KeyFile string

	// ClientCAFile is a bundle of additional authorities for client certificates, besides the server's own authority.
	// It is reloaded when it changes.
	ClientCAFile string

	// ClientCA has additional authorities, in PEM.
	ClientCA []byte

	// ServingOnly omits the administrator's certificate, because another authenticator identifies callers. It also
	// omits the authority if CertFile is set. ClientConfig and WriteKubeconfig must not be called then.
	ServingOnly bool

	// TokenLifetime is the lifetime of the token that kubeconfigs contain instead of the administrator's key; 0
	// writes the key. Run renews the token when a third of its lifetime is left.
	TokenLifetime time.Duration

	// PKCS12Password encrypts client.p12 in Dir, which holds the administrator's certificate and key. Empty writes no
	// such file.
	PKCS12Password string

	// FrontProxy creates an authority and a client certificate for requests that the server forwards to the servers
	// behind it.
	FrontProxy bool
	// FrontProxyFiles replace the generated front proxy certificates if CertFile is set in them.
	FrontProxyFiles FrontProxyFiles

	// Clock is used for validity and renewal; nil means the real clock.
	Clock clock.Clock
}

// Certs is a set of certificates in use. Its methods may be called concurrently.
type Certs struct {
	clock   clock.Clock
	files   files
	hosts   hosts
	own     bool // the serving certificate is generated
	alone   bool // the administrator's certificate is generated
	proxies bool
	serving *servingContent
	clients *clientCAs
	front   *FrontProxy // nil without Options.FrontProxy
	runners []dynamiccertificates.ControllerRunner
	changed chan struct{}

	tokenLifetime  time.Duration
	pkcs12Password string

	revocations revocations

	mu        sync.Mutex
	authority *pair
	server    *pair
	admin     *pair
	// proxyAuthority and proxy are nil without FrontProxy, and with FrontProxyFiles.
	proxyAuthority, proxy *pair
	kubeconfig            []kubeconfigTarget
}

// Open loads the certificates, and creates missing ones and renews due ones. An error is a single line that names the
// file and the remedy.
func Open(ctx context.Context, options Options) (*Certs, error) {
	c := &Certs{
		clock:   options.Clock,
		files:   memory{},
		own:     options.CertFile == "" && options.KeyFile == "",
		alone:   !options.ServingOnly,
		proxies: options.FrontProxy && options.FrontProxyFiles.CertFile == "",
		changed: make(chan struct{}, 1),

		tokenLifetime: options.TokenLifetime, pkcs12Password: options.PKCS12Password,
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	var err error
	if c.hosts, err = parseHosts(options.Hosts); err != nil {
		return nil, err
	}
	if options.Dir != "" && (c.own || c.alone) {
		if err := os.MkdirAll(options.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("create certificate folder: %w", err)
		}
		c.files = folder(options.Dir)
	}
	if _, err := c.renew(); err != nil {
		return nil, err
	}
	if err := c.writePKCS12(); err != nil {
		return nil, err
	}
	if err := c.loadRevocations(); err != nil {
		return nil, err
	}
	if err := c.openServing(ctx, options.CertFile, options.KeyFile); err != nil {
		return nil, err
	}
	if err := c.openFrontProxy(ctx, &options); err != nil {
		c.Close()
		return nil, err
	}
	if !c.alone {
		c.clients = &clientCAs{name: "client-ca"} // verifies no certificate
	} else if err := c.openClientCA(options.ClientCAFile, options.ClientCA); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close releases the resources of Open. If Run was called, it must have returned. The loaded certificates remain
// usable.
func (c *Certs) Close() {
	// Upstream's providers create their queues in the constructor and release them only at the end of Run.
	ended, end := context.WithCancel(context.Background())
	end()
	for _, runner := range c.runners {
		runner.Run(ended, 1)
	}
}

// Serving returns the serving certificate. It stays current while Run runs.
func (c *Certs) Serving() dynamiccertificates.CertKeyContentProvider { return c.serving }

// ClientCA returns the authorities that verify client certificates. It stays current while Run runs.
func (c *Certs) ClientCA() dynamiccertificates.CAContentProvider { return c.clients }

// Administrator returns the current certificate of the administrator, without its key. The server must have one.
func (c *Certs) Administrator() *x509.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admin.cert
}

// ClientConfig returns a client configuration of the administrator for the server at url, an https URL with host and
// port. It contains the current certificates and is not updated.
func (c *Certs) ClientConfig(url string) (*rest.Config, error) {
	trust, name, err := c.trust(url)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &rest.Config{
		Host: url,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:     trust,
			CertData:   c.admin.certPEM,
			KeyData:    c.admin.keyPEM,
			ServerName: name,
		},
	}, nil
}

// Run renews certificates when they become due, reloads the user's files and the revocation list when they change,
// and updates the kubeconfigs of WriteKubeconfig. It returns when ctx is done. A failed renewal is logged and retried
// within the hour; until then the current certificates stay in use.
func (c *Certs) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, runner := range c.runners {
		wg.Go(func() { runner.Run(ctx, 1) })
	}
	wg.Go(func() { c.followRevocations(ctx) })

	logger := klog.FromContext(ctx)
	interval := checkInterval
	if c.tokenLifetime > 0 {
		interval = min(interval, c.tokenLifetime/6)
	}
	timer := c.clock.NewTimer(interval)
	defer timer.Stop()
	for {
		renewed, err := c.renew()
		if err != nil {
			logger.Error(err, "Failed to renew certificates")
		}
		if renewed {
			logger.Info("Certificates renewed")
			c.serving.Enqueue()
			if c.alone {
				c.clients.Enqueue()
			}
			if c.proxies {
				c.front.Enqueue()
			}
		}
		if err := c.rewriteKubeconfigs(); err != nil {
			logger.Error(err, "Failed to update the kubeconfig")
		}
		if err := c.writePKCS12(); err != nil {
			logger.Error(err, "Failed to update the administrator's PKCS #12 file")
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C():
			timer.Reset(interval)
		}
	}
}

// Enqueue implements dynamiccertificates.Listener: a file of the user has changed.
func (c *Certs) Enqueue() {
	await.Notify(c.changed)
}

// renew creates or reissues missing and due certificates. It reports whether it has replaced a certificate that was
// in use.
func (c *Certs) renew() (renewed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()

	if !c.own && !c.alone {
		return false, nil
	}
	authority, err := c.ensure(now, "ca", authorityTemplate(), nil, c.authority)
	if err != nil {
		return false, err
	}
	admin := c.admin
	if c.alone {
		if admin, err = c.ensure(now, "admin", adminTemplate(), authority, c.admin); err != nil {
			return false, err
		}
	}
	server := c.server
	if c.own {
		if server, err = c.ensure(now, "server", serverTemplate(c.hosts), authority, c.server); err != nil {
			return false, err
		}
	}
	proxyAuthority, proxy := c.proxyAuthority, c.proxy
	if c.proxies {
		if proxyAuthority, err = c.ensure(now, "front-proxy-ca", proxyAuthorityTemplate(), nil, c.proxyAuthority); err != nil {
			return false, err
		}
		if proxy, err = c.ensure(now, "front-proxy-client", userTemplate(ProxyUser, nil), proxyAuthority, c.proxy); err != nil {
			return false, err
		}
	}
	renewed = c.authority != nil &&
		(c.authority != authority || c.admin != admin || c.server != server || c.proxyAuthority != proxyAuthority || c.proxy != proxy)
	c.authority, c.admin, c.server, c.proxyAuthority, c.proxy = authority, admin, server, proxyAuthority, proxy
	return renewed, nil
}

// openServing sets up the serving certificate: the user's if files are given, else the generated one.
func (c *Certs) openServing(ctx context.Context, certFile, keyFile string) error {
	if c.own {
		c.serving = &servingContent{name: "serving-cert", content: func() (cert, key []byte) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.server.certPEM, c.server.keyPEM
		}}
		return nil
	}
	if certFile == "" || keyFile == "" {
		return fmt.Errorf("serving certificate: certificate file %q and key file %q must be set together", certFile, keyFile)
	}
	loaded, err := loadPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	if now := c.clock.Now(); now.After(loaded.cert.NotAfter) || now.Before(loaded.cert.NotBefore) {
		klog.FromContext(ctx).Info("The serving certificate is outside its validity period, clients will reject it",
			"file", certFile, "notBefore", loaded.cert.NotBefore, "notAfter", loaded.cert.NotAfter)
	}
	fromFiles, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	if err != nil {
		return fmt.Errorf("serving certificate %s with key %s: %w", certFile, keyFile, err)
	}
	c.serving = &servingContent{name: fromFiles.Name(), content: fromFiles.CurrentCertKeyContent}
	c.follow(fromFiles, &c.serving.Listeners)
	return nil
}

// openClientCA sets up the verification of client certificates.
func (c *Certs) openClientCA(file string, more []byte) error {
	if len(more) > 0 {
		if _, err := cert.NewPoolFromBytes(more); err != nil {
			return fmt.Errorf("client authorities in memory: %w", err)
		}
	}
	c.clients = &clientCAs{name: "client-ca", content: func() []byte {
		c.mu.Lock()
		defer c.mu.Unlock()
		return joined(c.authority.certPEM, more)
	}}
	if file == "" {
		return c.clients.refresh()
	}
	// Check the file first: upstream's provider cannot be released after an error in its constructor.
	if _, err := cert.NewPool(file); err != nil {
		return fmt.Errorf("client authorities: %w", err)
	}
	fromFile, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
	if err != nil {
		return fmt.Errorf("client authorities %s: %w", file, err)
	}
	own := c.clients.content
	c.clients.name = fromFile.Name()
	c.clients.content = func() []byte {
		return joined(own(), fromFile.CurrentCABundleContent())
	}
	if err := c.clients.refresh(); err != nil {
		return fmt.Errorf("client authorities %s: %w", file, err)
	}
	c.follow(fromFile, c.clients)
	return nil
}

// joined returns the certificates of two bundles.
func joined(one, other []byte) []byte {
	if len(other) == 0 {
		return one
	}
	return bytes.Join([][]byte{bytes.TrimSpace(one), bytes.TrimSpace(other), nil}, []byte("\n"))
}

// follow makes Run keep a provider of the user's files current, and notifies listener of its changes.
func (c *Certs) follow(provider interface {
	dynamiccertificates.Notifier
	dynamiccertificates.ControllerRunner
}, listener dynamiccertificates.Listener) {
	provider.AddListener(listener)
	provider.AddListener(c)
	c.runners = append(c.runners, provider)
}

// files stores keys and certificates by name.
type files interface {
	// read returns an error that matches fs.ErrNotExist for a missing file.
	read(name string) ([]byte, error)
	// write replaces the file atomically and durably.
	write(name string, data []byte, mode os.FileMode) error
	// place writes a new file. The error matches fs.ErrExist if the file exists.
	place(name string, data []byte, mode os.FileMode) error
	// path returns the name for error messages.
	path(name string) string
}

type folder string

func (f folder) path(name string) string          { return filepath.Join(string(f), name) }
func (f folder) read(name string) ([]byte, error) { return os.ReadFile(f.path(name)) }
func (f folder) write(name string, data []byte, mode os.FileMode) error {
	return atomicfile.Write(f.path(name), data, mode)
}
func (f folder) place(name string, data []byte, mode os.FileMode) error {
	file, err := atomicfile.Create(f.path(name), mode)
	if err != nil {
		return err
	}
	defer file.Discard()
	if _, err := file.Write(data); err != nil {
		return err
	}
	return file.Place()
}

type memory map[string][]byte

func (m memory) path(name string) string { return name }
func (m memory) read(name string) ([]byte, error) {
	if data, ok := m[name]; ok {
		return data, nil
	}
	return nil, os.ErrNotExist
}
func (m memory) write(name string, data []byte, _ os.FileMode) error {
	m[name] = data
	return nil
}
func (m memory) place(name string, data []byte, mode os.FileMode) error {
	return m.write(name, data, mode)
}
