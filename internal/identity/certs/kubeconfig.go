package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

type kubeconfigTarget struct{ path, name, url string }

// ServerURL returns the https URL under which a client on this machine reaches a server that listens on address. An
// unspecified address becomes the loopback address.
func ServerURL(address net.IP, port int) string {
	switch {
	case address == nil || address.Equal(net.IPv4zero):
		address = net.IPv4(127, 0, 0, 1)
	case address.IsUnspecified():
		address = net.IPv6loopback
	}
	return "https://" + net.JoinHostPort(address.String(), strconv.Itoa(port))
}

// WriteKubeconfig adds the administrator's credentials for the server at url to the kubeconfig at path (0600,
// atomically). Run keeps them up to date from then on. Cluster and context are called name, the user name-admin.
//
// WriteKubeconfig owns only these three entries. It keeps everything else in the file: other clusters and contexts,
// the namespace in its context, and a current context that exists. A file that is not a kubeconfig is an error and
// stays unchanged.
func (c *Certs) WriteKubeconfig(path, name, url string) error {
	target := kubeconfigTarget{path: path, name: name, url: url}
	if err := c.writeKubeconfig(target); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kubeconfig = append(c.kubeconfig, target)
	return nil
}

func (c *Certs) rewriteKubeconfigs() error {
	c.mu.Lock()
	targets := c.kubeconfig[:len(c.kubeconfig):len(c.kubeconfig)]
	c.mu.Unlock()
	var errs []error
	for _, target := range targets {
		errs = append(errs, c.writeKubeconfig(target))
	}
	return errors.Join(errs...)
}

func (c *Certs) writeKubeconfig(target kubeconfigTarget) error {
	client, err := c.ClientConfig(target.url)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(target.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(old)
	if err != nil {
		return fmt.Errorf("%s is not a kubeconfig: move it away so that the server writes a new one: %w", target.path, err)
	}

	user := target.name + "-admin"
	config.Clusters[target.name] = &clientcmdapi.Cluster{
		Server:                   target.url,
		TLSServerName:            client.ServerName,
		CertificateAuthorityData: client.CAData,
	}
	if config.AuthInfos[user], err = c.adminAuth(config.AuthInfos[user]); err != nil {
		return err
	}
	context := clientcmdapi.NewContext()
	if known := config.Contexts[target.name]; known != nil {
		context = known
	}
	context.Cluster, context.AuthInfo = target.name, user
	config.Contexts[target.name] = context
	if config.Contexts[config.CurrentContext] == nil {
		config.CurrentContext = target.name
	}

	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	if bytes.Equal(data, old) {
		return nil
	}
	if err := atomicfile.Write(target.path, data, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// adminAuth returns the administrator's credentials for a kubeconfig, given its previous credentials or nil. A token
// that has enough lifetime left is kept, so that the file changes only when necessary.
func (c *Certs) adminAuth(old *clientcmdapi.AuthInfo) (*clientcmdapi.AuthInfo, error) {
	c.mu.Lock()
	admin := c.admin
	c.mu.Unlock()
	if c.tokenLifetime == 0 {
		return &clientcmdapi.AuthInfo{ClientCertificateData: admin.certPEM, ClientKeyData: admin.keyPEM}, nil
	}
	now := c.clock.Now()
	if old != nil && old.Token != "" {
		cert, expires, err := c.verifyToken(old.Token)
		if left := expires.Sub(now); cert != nil && err == nil && cert.Equal(admin.cert) && left <= c.tokenLifetime && left > c.tokenLifetime/3 {
			return &clientcmdapi.AuthInfo{Token: old.Token}, nil
		}
	}
	token, _, err := admin.token(now, c.tokenLifetime)
	if err != nil {
		return nil, fmt.Errorf("token of the administrator: %w", err)
	}
	return &clientcmdapi.AuthInfo{Token: token}, nil
}

// RootCA returns the PEM certificates that verify the server: the generated authority, or the user's serving
// certificate itself, because the server need not know the authority of that certificate.
func (c *Certs) RootCA() []byte {
	if c.own {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.authority.certPEM
	}
	bundle, _ := c.serving.CurrentCertKeyContent()
	return bundle
}

// trust returns the certificates that verify the server at address, and the server name for the verification if it
// differs from the host in address.
func (c *Certs) trust(address string) (bundle []byte, serverName string, err error) {
	bundle = c.RootCA()
	if c.own {
		return bundle, "", nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", fmt.Errorf("server URL: %w", err)
	}
	block, _ := pem.Decode(bundle)
	if block == nil {
		return nil, "", fmt.Errorf("serving certificate %s: no certificate in it", c.serving.Name())
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, "", fmt.Errorf("serving certificate %s: %w", c.serving.Name(), err)
	}
	switch {
	case cert.VerifyHostname(u.Hostname()) == nil:
	case len(cert.DNSNames) > 0:
		serverName = strings.Replace(cert.DNSNames[0], "*", "annex", 1)
	case len(cert.IPAddresses) > 0:
		serverName = cert.IPAddresses[0].String()
	}
	return bundle, serverName, nil
}

// ServerOf returns the cluster entry called name from the kubeconfig that WriteKubeconfig has written at path. If
// address is set, it replaces the URL of the entry. With an address the kubeconfig may be missing: then the server
// has to present a certificate of its own authority. Missing or invalid input is a Refusal.
func ServerOf(path, name, address string) (*clientcmdapi.Cluster, error) {
	if address != "" {
		u, err := url.Parse(address)
		switch {
		case err != nil:
			return nil, refuse("NewUser.Server: %v", err)
		case u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return nil, refuse("NewUser.Server %q is not a URL such as https://host:8443; certificates require https", address)
		}
	}
	cluster := clientcmdapi.NewCluster()
	known, err := clientcmd.LoadFromFile(path)
	switch {
	case err == nil && known.Clusters[name] != nil:
		cluster = known.Clusters[name]
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	case address == "":
		return nil, refuse("unknown URL of %s, because its kubeconfig %q does not exist: start the server once with this data directory, "+
			"or set NewUser.Server", name, path)
	}
	if address != "" {
		cluster.Server = address
	}
	return cluster, nil
}

// Kubeconfig returns a kubeconfig with the user's certificate and key, for a server called name.
func (c *Credentials) Kubeconfig(name string, server *clientcmdapi.Cluster) ([]byte, error) {
	return c.kubeconfig(name, server, &clientcmdapi.AuthInfo{ClientCertificateData: c.certPEM, ClientKeyData: c.keyPEM})
}

// TokenKubeconfig returns a kubeconfig with a token instead of the key.
func (c *Credentials) TokenKubeconfig(name string, server *clientcmdapi.Cluster, token string) ([]byte, error) {
	return c.kubeconfig(name, server, &clientcmdapi.AuthInfo{Token: token})
}

// ExecKubeconfig returns a kubeconfig whose clients run a command to get a token.
func (c *Credentials) ExecKubeconfig(name string, server *clientcmdapi.Cluster, command string, args ...string) ([]byte, error) {
	return c.kubeconfig(name, server, &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion:      clientauthenticationv1.SchemeGroupVersion.String(),
		Command:         command,
		Args:            args,
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}})
}

func (c *Credentials) kubeconfig(name string, server *clientcmdapi.Cluster, auth *clientcmdapi.AuthInfo) ([]byte, error) {
	user, cluster := c.cert.Subject.CommonName, server.DeepCopy()
	if len(cluster.CertificateAuthorityData) == 0 {
		cluster.CertificateAuthorityData = c.authority.certPEM
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = cluster
	config.AuthInfos[user] = auth
	config.CurrentContext = user + "@" + name
	context := clientcmdapi.NewContext()
	context.Cluster, context.AuthInfo = name, user
	config.Contexts[config.CurrentContext] = context
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return data, nil
}
