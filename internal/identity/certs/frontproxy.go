package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/clientcert"
)

// FrontProxyFiles are files of the user, instead of a generated authority and certificate, for forwarded requests.
// All of them are reloaded when they change.
type FrontProxyFiles struct {
	// CertFile and KeyFile are the client certificate. CAFile contains the authorities with which the servers behind
	// this one verify it.
	CertFile, KeyFile, CAFile string
	// Names are the common names that the servers behind accept; empty means the common name in CertFile.
	Names []string
}

// FrontProxy is the identity of this server towards the servers behind it. Its methods may be called concurrently.
type FrontProxy struct {
	clientcert.Listeners
	client func() (certPEM, keyPEM []byte)
	ca     func() []byte
	names  func() []string
}

// Client returns the current certificate and its key.
func (p *FrontProxy) Client() (certPEM, keyPEM []byte) { return p.client() }

// CA returns the authorities that verify the certificate.
func (p *FrontProxy) CA() []byte { return p.ca() }

// Names returns the common names that the servers behind are to accept.
func (p *FrontProxy) Names() []string { return p.names() }

// FrontProxy returns the identity towards the servers behind this one; nil without Options.FrontProxy. It stays
// current while Run runs, and notifies its listeners of changes.
func (c *Certs) FrontProxy() *FrontProxy { return c.front }

func (c *Certs) openFrontProxy(ctx context.Context, options *Options) error {
	switch {
	case !options.FrontProxy:
		return nil
	case options.FrontProxyFiles.CertFile != "":
		return c.openFrontProxyFiles(ctx, &options.FrontProxyFiles)
	}
	c.front = &FrontProxy{
		client: func() (certPEM, keyPEM []byte) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.proxy.certPEM, c.proxy.keyPEM
		},
		ca: func() []byte {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.proxyAuthority.certPEM
		},
		names: func() []string { return []string{ProxyUser} },
	}
	return nil
}

func (c *Certs) openFrontProxyFiles(ctx context.Context, files *FrontProxyFiles) error {
	loaded, err := loadPair(files.CertFile, files.KeyFile)
	if err != nil {
		return fmt.Errorf("Options.ControlPlane.ProxyClientCertFile: %w", err)
	}
	bundle, err := os.ReadFile(files.CAFile)
	if err != nil {
		return fmt.Errorf("Options.RequestHeader.ClientCAFile: %w", err)
	}
	if err := c.checkFrontProxy(ctx, files, loaded, bundle); err != nil {
		return err
	}
	client, err := dynamiccertificates.NewDynamicServingContentFromFiles("proxy-client", files.CertFile, files.KeyFile)
	if err != nil {
		return fmt.Errorf("Options.ControlPlane.ProxyClientCertFile %s with key %s: %w", files.CertFile, files.KeyFile, err)
	}
	c.front = &FrontProxy{client: client.CurrentCertKeyContent}
	c.follow(client, &c.front.Listeners)
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("proxy-client-ca", files.CAFile)
	if err != nil {
		return fmt.Errorf("Options.RequestHeader.ClientCAFile %s: %w", files.CAFile, err)
	}
	c.front.ca = ca.CurrentCABundleContent
	c.follow(ca, &c.front.Listeners)
	c.front.names = func() []string {
		if len(files.Names) > 0 {
			return files.Names
		}
		certPEM, _ := c.front.Client()
		return []string{nameIn(certPEM, loaded.cert.Subject.CommonName)}
	}
	return nil
}

// nameIn returns the common name of the first certificate, or before if there is none.
func nameIn(certPEM []byte, before string) string {
	if all, err := cert.ParseCertsPEM(certPEM); err == nil && all[0].Subject.CommonName != "" {
		return all[0].Subject.CommonName
	}
	return before
}

// checkFrontProxy returns an error if the servers behind would reject the certificate.
func (c *Certs) checkFrontProxy(ctx context.Context, files *FrontProxyFiles, loaded *pair, bundle []byte) error {
	const field = "Options.ControlPlane.ProxyClientCertFile"
	name := loaded.cert.Subject.CommonName
	switch {
	case name == "":
		return fmt.Errorf(
			"%s %s has no common name, by which aggregated servers verify this server: issue a certificate with a common name such as %s",
			field,
			files.CertFile,
			ProxyUser,
		)
	case len(files.Names) > 0 && !slices.Contains(files.Names, name):
		return fmt.Errorf("%s %s has the common name %q, which aggregated servers would reject: use a certificate for %s, or add the name "+
			"to Options.RequestHeader.AllowedNames", field, files.CertFile, name, strings.Join(files.Names, ", "))
	}
	authorities, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return fmt.Errorf("Options.RequestHeader.ClientCAFile %s: %w: must have certificates in PEM", files.CAFile, err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, authority := range authorities {
		roots.AddCert(authority)
	}
	chain, err := tls.X509KeyPair(loaded.certPEM, loaded.keyPEM)
	if err != nil {
		return fmt.Errorf("%s %s: %w", field, files.CertFile, err)
	}
	for _, der := range chain.Certificate[1:] {
		if issuer, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(issuer)
		}
	}
	// An expired certificate can be replaced while the server runs, so it does not prevent the start.
	now := c.clock.Now()
	if now.After(loaded.cert.NotAfter) || now.Before(loaded.cert.NotBefore) {
		klog.FromContext(ctx).Error(nil, "The client certificate for aggregated servers is outside its validity period, these servers "+
			"reject it",
			"file", files.CertFile, "notBefore", loaded.cert.NotBefore, "notAfter", loaded.cert.NotAfter)
		now = loaded.cert.NotBefore
	}
	if _, err := loaded.cert.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return fmt.Errorf("aggregated servers would reject %s %s (%w): use a client certificate issued by an authority in "+
			"Options.RequestHeader.ClientCAFile %s", field, files.CertFile, err, files.CAFile)
	}
	return nil
}
