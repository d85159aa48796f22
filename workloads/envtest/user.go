package envtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// AuthenticatedUser is a user with a client certificate.
type AuthenticatedUser struct{ config *rest.Config }

// Config returns the user's client configuration. Each call returns a copy.
func (u *AuthenticatedUser) Config() *rest.Config { return rest.CopyConfig(u.config) }

// KubeConfig returns a kubeconfig with the user's certificate and key.
func (u *AuthenticatedUser) KubeConfig() ([]byte, error) {
	const name = "envtest"
	t := u.config.TLSClientConfig
	content, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{name: {Server: u.config.Host, CertificateAuthorityData: t.CAData}},
		AuthInfos:      map[string]*api.AuthInfo{name: {ClientCertificateData: t.CertData, ClientKeyData: t.KeyData}},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig: %w", err)
	}
	return content, nil
}

// lifetime bounds the certificates, which are for one run of a test.
const lifetime = 7 * 24 * time.Hour

// authority issues client certificates. Its key is in memory only.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority of users: %w", err)
	}
	template, err := newTemplate(pkix.Name{CommonName: "envtest-users"})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority of users: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority of users: %w", err)
	}
	return &authority{key, cert}, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number of a certificate: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(lifetime)}, nil
}

// certificate returns the authority's certificate as PEM.
func (a *authority) certificate() []byte { return encodePEM("CERTIFICATE", a.cert.Raw) }

// issue returns a client certificate and its key as PEM.
func (a *authority) issue(name string, groups []string) (certificate, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: name, Organization: groups})
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, own.Public(), crypto.Signer(a.key))
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return nil, nil, err
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", encoded), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
