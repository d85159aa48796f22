package kube

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func host(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

func (c *Cluster) config(port int, client Pair) *rest.Config {
	config := c.anonymous(port)
	config.CertData, config.KeyData = client.Certificate, client.Key
	return config
}

// anonymous returns a config without client-side rate limits.
func (c *Cluster) anonymous(port int) *rest.Config {
	return &rest.Config{Host: host(port), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: c.servers.PEM()}}
}

// Admin returns the config of an administrator with all rights. The caller owns it.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// User returns the config of a user with a client certificate.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	client, err := c.clients.Client(name, groups...)
	if err != nil {
		return nil, err
	}
	return c.config(c.APIServer.Port(0), client), nil
}

// ServiceAccount returns the config of a service account, with a token that is valid for a day. The account must
// exist.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return nil, err
	}
	day := int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token for the service account %s/%s: %w", namespace, name, err)
	}
	config := c.anonymous(c.APIServer.Port(0))
	config.BearerToken = token.Status.Token
	return config, nil
}

// ClientAuthority returns the authority whose client certificates the cluster accepts for users.
func (c *Cluster) ClientAuthority() *Authority { return c.clients }

// FrontProxyAuthority returns the authority whose client certificates identify the front proxy to aggregated API
// servers, if the name is allowed.
func (c *Cluster) FrontProxyAuthority() *Authority { return c.frontProxy }

// FrontProxyClient creates a certificate of the front proxy's authority. Only the name front-proxy-client is allowed.
func (c *Cluster) FrontProxyClient(name string) (Pair, error) { return c.frontProxy.Client(name) }

// WriteKubeconfig writes a kubeconfig for kubectl and other programs: a server's address, the authority of its
// certificate, and the client's certificate or token. No other user may read it.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "cluster"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthorityData: config.CAData, InsecureSkipTLSVerify: config.Insecure,
	}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	return clientcmd.WriteToFile(*file, path)
}
