package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/keyutil"
)

// pair is a certificate with its key. It is immutable.
type pair struct {
	cert            *x509.Certificate
	key             crypto.Signer
	certPEM, keyPEM []byte
}

// template contains the fields in which certificates to issue differ.
type template struct {
	life time.Duration
	x509.Certificate
}

func authorityTemplate() template {
	return template{life: authorityLife, Certificate: x509.Certificate{
		Subject:               pkix.Name{CommonName: "annex-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}}
}

// proxyAuthorityTemplate describes a separate authority, so that a user's certificate cannot impersonate other users.
func proxyAuthorityTemplate() template {
	tmpl := authorityTemplate()
	tmpl.Subject = pkix.Name{CommonName: "annex-front-proxy-ca"}
	return tmpl
}

func adminTemplate() template { return userTemplate(AdminUser, []string{AdminGroup}) }

func userTemplate(name string, groups []string) template {
	return template{life: leafLife, Certificate: x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}}
}

func serverTemplate(h hosts) template {
	return template{life: leafLife, Certificate: x509.Certificate{
		Subject:     pkix.Name{CommonName: "annex"},
		DNSNames:    h.names,
		IPAddresses: h.ips,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}}
}

// ensure returns the pair called name, after creating or reissuing it if necessary. A nil issuer makes it
// self-signed. If the files are unchanged, ensure returns current itself.
func (c *Certs) ensure(now time.Time, name string, tmpl template, issuer, current *pair) (*pair, error) {
	keyFile, certFile := c.files.path(name+".key"), c.files.path(name+".crt")
	// Read the certificate before the key. Another process that creates both writes the key first, so a certificate
	// without a key cannot be observed.
	certPEM, noCert, err := c.load(name + ".crt")
	if err != nil {
		return nil, err
	}
	keyPEM, noKey, err := c.load(name + ".key")
	if err != nil {
		return nil, err
	}

	switch {
	case noKey && noCert:
		if keyPEM, err = newKey(); err != nil {
			return nil, err
		}
		err := c.files.place(name+".key", keyPEM, 0o600)
		if errors.Is(err, fs.ErrExist) { // another process has just created it
			return c.ensure(now, name, tmpl, issuer, current)
		}
		if err != nil {
			return nil, fmt.Errorf("write key: %w", err)
		}
	case noKey:
		return nil, fmt.Errorf("%s is missing, but %s exists: restore the file, or remove %[2]s so that the server creates "+
			"both again", keyFile, certFile)
	case !noCert:
		found, err := parsePair(certFile, keyFile, certPEM, keyPEM)
		if err != nil {
			return nil, fmt.Errorf("%w: restore the file, or remove %s so that the server issues it again", err, certFile)
		}
		if err := found.checkIssuer(tmpl, issuer); err != nil {
			return nil, fmt.Errorf("%s %w: restore the matching files, or remove %[1]s so that the server issues it again", certFile, err)
		}
		if !found.due(now) && found.covers(tmpl) {
			if current != nil && bytes.Equal(current.certPEM, certPEM) && bytes.Equal(current.keyPEM, keyPEM) {
				return current, nil
			}
			return found, nil
		}
		if tmpl.IsCA {
			tmpl.RawSubject, tmpl.SubjectKeyId = found.cert.RawSubject, found.cert.SubjectKeyId
		}
	}

	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: restore the file, or remove it together with %s so that the server creates "+
			"both again", keyFile, err, certFile)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: not a private key that can sign", keyFile)
	}
	if certPEM, err = issue(now, tmpl, key, issuer); err != nil {
		return nil, fmt.Errorf("issue %s: %w", certFile, err)
	}
	if err := c.files.write(name+".crt", certPEM, 0o644); err != nil {
		return nil, fmt.Errorf("write certificate: %w", err)
	}
	return parsePair(certFile, keyFile, certPEM, keyPEM)
}

func (c *Certs) load(name string) (data []byte, missing bool, err error) {
	data, err = c.files.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read certificate folder: %w", err)
	}
	return data, false, nil
}

func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// issue signs the template for key; without an issuer, key signs it itself. No certificate outlives its issuer.
func issue(now time.Time, tmpl template, key crypto.Signer, issuer *pair) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	cert := tmpl.Certificate
	cert.SerialNumber = serial
	cert.NotBefore = now.Add(-Backdate).UTC()
	cert.NotAfter = now.Add(tmpl.life).UTC()
	parent, signer := &cert, key
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
		if cert.NotAfter.After(parent.NotAfter) {
			cert.NotAfter = parent.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, &cert, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// parsePair reports an error unless certificate and key belong together. The error names the files.
func parsePair(certFile, keyFile string, certPEM, keyPEM []byte) (*pair, error) {
	loaded, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	cert, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	key, ok := loaded.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: not a private key that can sign", keyFile)
	}
	return &pair{cert: cert, key: key, certPEM: certPEM, keyPEM: keyPEM}, nil
}

// loadPair calls parsePair for two files of the user.
func loadPair(certFile, keyFile string) (*pair, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	return parsePair(certFile, keyFile, certPEM, keyPEM)
}

func (p *pair) checkIssuer(tmpl template, issuer *pair) error {
	if issuer == nil {
		issuer = p
	}
	if p.cert.IsCA != tmpl.IsCA {
		return fmt.Errorf("is a certificate for another use")
	}
	if err := p.cert.CheckSignatureFrom(issuer.cert); err != nil {
		return fmt.Errorf("was not issued by the certificate authority in the same folder (%w)", err)
	}
	return nil
}

// Due reports whether a certificate has to be replaced, because less than a third of its lifetime is left. A
// certificate that is not valid yet was issued under a wrong clock, and is due as well.
func Due(cert *x509.Certificate, now time.Time, life time.Duration) bool {
	return now.Before(cert.NotBefore) || cert.NotAfter.Sub(now) < life/3
}

func (p *pair) due(now time.Time) bool {
	return Due(p.cert, now, p.cert.NotAfter.Sub(p.cert.NotBefore))
}

// covers reports whether the certificate is valid for all hosts of the template.
func (p *pair) covers(tmpl template) bool {
	for _, name := range tmpl.DNSNames {
		if p.cert.VerifyHostname(strings.Replace(name, "*", "annex", 1)) != nil {
			return false
		}
	}
	for _, ip := range tmpl.IPAddresses {
		if p.cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// hosts are the hosts of a serving certificate.
type hosts struct {
	names []string
	ips   []net.IP
}

func parseHosts(extra []string) (hosts, error) {
	h := hosts{
		names: []string{"localhost"},
		ips:   []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if machine, err := os.Hostname(); err == nil {
		h.addName(strings.ToLower(machine))
	}
	for _, host := range extra {
		ip := net.ParseIP(host)
		switch {
		case ip != nil && ip.IsUnspecified():
		case ip != nil:
			h.addIP(ip)
		case !h.addName(strings.ToLower(host)):
			return hosts{}, fmt.Errorf("serving certificate: %q is neither an IP address nor a DNS name", host)
		}
	}
	return h, nil
}

// addName adds name and reports whether it is a DNS name.
func (h *hosts) addName(name string) bool {
	if len(validation.IsDNS1123Subdomain(name)) > 0 && len(validation.IsWildcardDNS1123Subdomain(name)) > 0 {
		return false
	}
	for _, known := range h.names {
		if known == name {
			return true
		}
	}
	h.names = append(h.names, name)
	return true
}

func (h *hosts) addIP(ip net.IP) {
	for _, known := range h.ips {
		if known.Equal(ip) {
			return
		}
	}
	h.ips = append(h.ips, ip)
}

// Backdate is the time between the start of a certificate's validity and its issue, for clients whose clocks are
// slightly behind.
const Backdate = 5 * time.Minute

// NewAuthority creates an authority that signs serving certificates.
func NewAuthority(now time.Time, name string, life time.Duration) (certPEM, keyPEM []byte, err error) {
	tmpl := authorityTemplate()
	tmpl.life, tmpl.Subject = life, pkix.Name{CommonName: name}
	return newCertificate(now, tmpl, nil)
}

// NewServing creates a serving certificate for DNS names. The authority signs it, and the certificate does not
// outlive the authority. Without an authority, the certificate is self-signed.
func NewServing(
	now time.Time,
	names []string,
	life time.Duration,
	authorityCert, authorityKey []byte,
) (certPEM, keyPEM []byte, err error) {
	tmpl := serverTemplate(hosts{names: names})
	tmpl.life, tmpl.Subject = life, pkix.Name{CommonName: names[0]}
	if authorityCert == nil {
		return newCertificate(now, tmpl, nil)
	}
	authority, err := parsePair("ca.crt", "ca.key", authorityCert, authorityKey)
	if err != nil {
		return nil, nil, err
	}
	return newCertificate(now, tmpl, authority)
}

func newCertificate(now time.Time, tmpl template, issuer *pair) (certPEM, keyPEM []byte, err error) {
	if keyPEM, err = newKey(); err != nil {
		return nil, nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("read the key made: %w", err)
	}
	if certPEM, err = issue(now, tmpl, parsed.(crypto.Signer), issuer); err != nil {
		return nil, nil, fmt.Errorf("issue certificate: %w", err)
	}
	return certPEM, keyPEM, nil
}
