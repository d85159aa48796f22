package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
)

// Options are the parts of a cluster.
type Options struct {
	// Bin is the directory of the programs etcd, kube-apiserver and, if there are controllers, kube-controller-manager.
	Bin string
	// Dir keeps all files of the cluster: data, keys and logs. It exists and is empty, and no other user may read it.
	Dir string
	// Controllers are the controllers of kube-controller-manager to run, by the names of its flag --controllers. Nil
	// means Controllers(); an empty slice does not start the program.
	Controllers []string
	// Durable makes etcd sync its writes, which costs time and which tests do not need.
	Durable bool
	// APIServerArgs come after the flags of kube-apiserver that the cluster needs, and ControllerManagerArgs after
	// those of kube-controller-manager.
	APIServerArgs, ControllerManagerArgs []string
}

// Controllers returns the controllers that affect objects of aggregated API servers.
func Controllers() []string {
	return []string{"namespace-controller", "garbage-collector-controller", "resourcequota-controller"}
}

// The front proxy of a cluster, by which kube-apiserver names the caller to aggregated API servers.
const (
	frontProxyName = "front-proxy-client"
	administrators = "system:masters"
)

// Cluster is a running cluster. Its methods may be called concurrently, except for methods that start and stop
// processes.
type Cluster struct {
	// Etcd, APIServer and ControllerManager are its processes, which a test may stop and start again.
	// ControllerManager is nil if there are no controllers.
	Etcd                         *Etcd
	APIServer, ControllerManager *Process

	options    Options
	clients    *Authority // of all users of the cluster
	servers    *Authority // of kube-apiserver
	frontProxy *Authority
	admin      *rest.Config
}

// Start starts a cluster and returns when it serves. If it fails, nothing runs.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Controllers == nil {
		options.Controllers = Controllers()
	}
	c := &Cluster{options: options}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	programs := []string{"etcd", "kube-apiserver"}
	if len(c.options.Controllers) > 0 {
		programs = append(programs, "kube-controller-manager")
	}
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(c.options.Bin, program)); err != nil {
			return fmt.Errorf("%w: make cluster builds it", err)
		}
	}
	var err error
	for name, authority := range map[string]**Authority{"clients": &c.clients, "servers": &c.servers, "front-proxy": &c.frontProxy} {
		if *authority, err = NewAuthority(name); err != nil {
			return err
		}
	}
	start := StartEtcd
	if c.options.Durable {
		start = StartDurableEtcd
	}
	if c.Etcd, err = start(ctx, c.options.Bin, c.options.Dir, "etcd"); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if len(c.options.Controllers) > 0 {
		return c.startControllerManager(ctx)
	}
	return nil
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	args, err := c.apiServerFiles()
	if err != nil {
		return err
	}
	args = append(args,
		"--etcd-servers", c.Etcd.Endpoint(),
		"--bind-address", "127.0.0.1",
		"--advertise-address", "127.0.0.1",
		"--endpoint-reconciler-type", "none", // it refuses a loopback address
		"--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--authorization-mode", "RBAC",
		"--disable-admission-plugins", "ServiceAccount", // no controller creates default accounts
		"--requestheader-allowed-names", frontProxyName,
		"--requestheader-username-headers", "X-Remote-User",
		"--requestheader-uid-headers", "X-Remote-Uid",
		"--requestheader-group-headers", "X-Remote-Group",
		"--requestheader-extra-headers-prefix", "X-Remote-Extra-",
	)
	args = append(args, c.options.APIServerArgs...)
	admin, err := c.clients.Client("admin", administrators)
	if err != nil {
		return err
	}
	var client *http.Client
	c.APIServer, err = Run(ctx, c.options.Dir, Program{
		Name: "kube-apiserver", Path: filepath.Join(c.options.Bin, "kube-apiserver"), Ports: 1,
		Args: func(ports []int) []string { return append(args, "--secure-port", fmt.Sprint(ports[0])) },
		Ready: func(ctx context.Context, ports []int) error {
			if c.admin == nil || c.admin.Host != host(ports[0]) {
				c.admin = c.config(ports[0], admin)
				if client, err = rest.HTTPClientFor(c.admin); err != nil {
					return err
				}
			}
			return ok(ctx, client, c.admin.Host+"/readyz")
		},
	})
	return err
}

// apiServerFiles writes the files that kube-apiserver reads, and returns the flags that name them.
func (c *Cluster) apiServerFiles() ([]string, error) {
	dir := c.options.Dir
	serving, err := c.servers.Server("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")
	if err != nil {
		return nil, err
	}
	servingCert, servingKey, err := serving.Write(dir, "kube-apiserver")
	if err != nil {
		return nil, err
	}
	proxy, err := c.FrontProxyClient(frontProxyName)
	if err != nil {
		return nil, err
	}
	proxyCert, proxyKey, err := proxy.Write(dir, frontProxyName)
	if err != nil {
		return nil, err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tokenKey, err := encodeKey(tokens)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"service-accounts.key": tokenKey, "clients.crt": c.clients.PEM(), "front-proxy.crt": c.frontProxy.PEM(),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return []string{
		"--cert-dir", dir, "--tls-cert-file", servingCert, "--tls-private-key-file", servingKey,
		"--client-ca-file", filepath.Join(dir, "clients.crt"),
		"--service-account-key-file", filepath.Join(dir, "service-accounts.key"),
		"--service-account-signing-key-file", filepath.Join(dir, "service-accounts.key"),
		"--proxy-client-cert-file", proxyCert, "--proxy-client-key-file", proxyKey,
		"--requestheader-client-ca-file", filepath.Join(dir, "front-proxy.crt"),
	}, nil
}

func (c *Cluster) startControllerManager(ctx context.Context) error {
	config, err := c.User("system:kube-controller-manager")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.options.Dir, "kube-controller-manager.kubeconfig")
	if err := WriteKubeconfig(kubeconfig, config); err != nil {
		return err
	}
	c.ControllerManager, err = Run(ctx, c.options.Dir, Program{
		Name: "kube-controller-manager", Path: filepath.Join(c.options.Bin, "kube-controller-manager"),
		Args: func([]int) []string {
			return append([]string{
				"--kubeconfig", kubeconfig, "--secure-port", "0", "--leader-elect=false",
				"--use-service-account-credentials", "--controllers", strings.Join(c.options.Controllers, ","),
			}, c.options.ControllerManagerArgs...)
		},
	})
	return err
}

// Stop ends all processes of the cluster. It returns the errors of processes that did not end in an orderly way.
func (c *Cluster) Stop() error {
	var failed []error
	if c.ControllerManager != nil {
		c.ControllerManager.Kill() // its exit code is meaningless
	}
	if c.APIServer != nil {
		failed = append(failed, c.APIServer.Stop())
	}
	if c.Etcd != nil {
		c.Etcd.Kill() // its data is not read again
	}
	return errors.Join(failed...)
}
