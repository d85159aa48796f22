// Package certs gives a server that stands alone everything it needs to speak
// TLS and to know its administrator: an authority of its own, a serving
// certificate, an administrator's client certificate and a kubeconfig. It makes
// them on the first start, keeps them afterwards and renews them in time, so that
// no certificate tool has to be run before the first kubectl command.
//
// All keys are ECDSA P-256: making RSA keys would be most of a server's start-up
// time.
//
// # Files
//
// The folder holds ca, server and admin, and of a server with others behind it front-proxy-ca and
// front-proxy-client, each as <name>.key (0600) and <name>.crt. A key is made once and kept. A certificate is issued from its key
// again when less than a third of its life is left, or, for the server, when it
// does not cover a host that is asked for. Because the authority keeps its key
// and subject, its renewed certificate and its old one verify the same
// certificates: kubeconfigs that were handed out stay valid.
//
// Each step of that replaces a single file atomically, so a crash at any moment
// leaves a folder that the next start completes. Anything else that is wrong with
// the files is an error that names the file; nothing is overwritten to cure it.
//
// Beside them, users holds a copy of each certificate that Users has issued, as
// <serial number>.crt. Their keys are kept nowhere. What has been revoked is in ca.crl, signed
// by the authority; .lock is locked while that is written.
package certs

import (
	"bytes"
	"context"
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
	// AdminGroup is the group in it, to which everything is allowed.
	AdminGroup = "system:masters"
	// ProxyUser is the user name in the certificate that the server shows to those behind it.
	ProxyUser = "front-proxy-client"

	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// checkInterval bounds how late a renewal is on a machine that was suspended,
	// where timers stand still.
	checkInterval = time.Hour
)

// Options say which certificates a server uses. The zero value keeps a set for
// this machine in memory.
type Options struct {
	// Dir is the folder that keeps keys and certificates. It is made if missing
	// (0700). One server at a time may use it, and any number of Users. Empty keeps
	// everything in memory: then each Open makes a new authority.
	Dir string

	// Hosts are the IP addresses and DNS names that the serving certificate has to
	// cover besides localhost, 127.0.0.1, ::1 and the host name of the machine. An
	// unspecified address (0.0.0.0, ::) is passed over.
	Hosts []string

	// CertFile and KeyFile are a serving certificate of the user's, used in place of
	// an own one and read again when they change. Either both or none are given.
	CertFile, KeyFile string

	// ClientCAFile is a bundle of authorities of the user's whose client certificates
	// are believed, besides those of the own authority. It is read again when it
	// changes.
	ClientCAFile string

	// ServingOnly makes nothing for an administrator, and no authority either if the
	// serving certificate is the user's: another authenticator knows the callers.
	// ClientConfig and kubeconfigs are not to be asked for then.
	ServingOnly bool

	// TokenLifetime has kubeconfigs hold a token that lives so long, in the place of the
	// administrator's key; 0 has the key in them. Run renews the token when a third is left.
	TokenLifetime time.Duration

	// PKCS12Password has the administrator's certificate and key written as client.p12 into Dir,
	// too; empty does not.
	PKCS12Password string

	// FrontProxy makes an authority and a client certificate of its own for the requests that the
	// server sends on to others behind it.
	FrontProxy bool
	// FrontProxyFiles are the user's in their place, if there is a CertFile.
	FrontProxyFiles FrontProxyFiles

	// Clock is used for validity and renewal; nil is the real one.
	Clock clock.Clock
}

// Certs is a set of certificates in use. Its methods may be called concurrently.
type Certs struct {
	clock   clock.Clock
	files   files
	hosts   hosts
	own     bool // the serving certificate is ours
	alone   bool // so is the administrator
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
	// proxyAuthority and proxy are nil without FrontProxy, and with files of the user's.
	proxyAuthority, proxy *pair
	kubeconfig            []kubeconfigTarget
}

// Open loads the certificates, and makes or renews what is missing or due. An
// error is one line that names the file at fault and what to do about it.
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
			return nil, fmt.Errorf("make certificate folder: %w", err)
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
	} else if err := c.openClientCA(options.ClientCAFile); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close releases what Open started. Run must have returned if it was called. The
// certificates that have been loaded can still be used.
func (c *Certs) Close() {
	// Upstream's providers hold queues from the beginning, and release them at the
	// end of their run.
	ended, end := context.WithCancel(context.Background())
	end()
	for _, runner := range c.runners {
		runner.Run(ended, 1)
	}
}

// Serving is the certificate to present to clients. It stays current while Run
// runs.
func (c *Certs) Serving() dynamiccertificates.CertKeyContentProvider { return c.serving }

// ClientCA is what client certificates are verified against. It stays current
// while Run runs.
func (c *Certs) ClientCA() dynamiccertificates.CAContentProvider { return c.clients }

// ClientConfig returns a configuration with which the administrator reaches the
// server at url, which is an https URL with host and port. It holds the
// certificates of this moment.
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

// Run renews certificates when they become due, reads the user's files and the revocation
// list again when they change, and brings the kubeconfigs that were written up to date. It
// returns when ctx is done. A failed renewal is logged and retried within
// the hour; until then the current certificates stay in use.
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
			logger.Error(err, "Certificates were not renewed")
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
			logger.Error(err, "Kubeconfig was not brought up to date")
		}
		if err := c.writePKCS12(); err != nil {
			logger.Error(err, "The administrator's PKCS #12 was not brought up to date")
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

// Enqueue implements dynamiccertificates.Listener: a file of the user's changed.
func (c *Certs) Enqueue() {
	await.Notify(c.changed)
}

// renew makes or reissues whatever is missing or due and says whether anything
// that was in use has been replaced.
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

// openServing sets up the serving certificate, the user's if files are given.
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
		return fmt.Errorf("serving certificate: certificate file %q and key file %q have to be given together", certFile, keyFile)
	}
	loaded, err := loadPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	if now := c.clock.Now(); now.After(loaded.cert.NotAfter) || now.Before(loaded.cert.NotBefore) {
		klog.FromContext(ctx).Info("The serving certificate is outside its validity, clients will refuse it",
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
func (c *Certs) openClientCA(file string) error {
	c.clients = &clientCAs{name: "client-ca", content: func() []byte {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.authority.certPEM
	}}
	if file == "" {
		return c.clients.refresh()
	}
	// Upstream's provider cannot be released when it finds a mistake.
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
		return bytes.Join([][]byte{own(), bytes.TrimSpace(fromFile.CurrentCABundleContent()), nil}, []byte("\n"))
	}
	if err := c.clients.refresh(); err != nil {
		return fmt.Errorf("client authorities %s: %w", file, err)
	}
	c.follow(fromFile, c.clients)
	return nil
}

// follow makes Run keep a provider of the user's files current, and notifies the listeners
// of its changes.
func (c *Certs) follow(provider interface {
	dynamiccertificates.Notifier
	dynamiccertificates.ControllerRunner
}, listener dynamiccertificates.Listener) {
	provider.AddListener(listener)
	provider.AddListener(c)
	c.runners = append(c.runners, provider)
}

// files keeps keys and certificates by name.
type files interface {
	// read returns an error matching fs.ErrNotExist for a missing file.
	read(name string) ([]byte, error)
	// write replaces the file atomically and durably.
	write(name string, data []byte, mode os.FileMode) error
	// place writes a file that is not there yet; the error matches fs.ErrExist if it is.
	place(name string, data []byte, mode os.FileMode) error
	// path names the file in errors.
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
