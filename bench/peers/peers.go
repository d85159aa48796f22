package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

// The names of the compared servers.
const (
	embedded = "embedded" // the project's sample on its own storage
	annexed  = "etcd"     // the project's sample on etcd
	sample   = "sample"   // upstream's sample API server on etcd
	crd      = "crd"      // a CustomResourceDefinition of kube-apiserver on etcd
	bare     = "bare"     // a bare Go server, which does only the indispensable
	synced   = "synced"   // the same, which also appends writes to a file and syncs it; only its requests are measured
	// An older build of the project's sample, if there is one to measure.
	embeddedBefore = "embedded-before"
	annexedBefore  = "etcd-before"
)

// peer is a measured server, with the etcd that belongs to it alone.
type peer struct {
	name    string
	address string
	tls     *tls.Config
	server  *kube.Process
	etcd    *kube.Etcd // nil if it has none
}

// pids returns the processes of the server and its store.
func (p *peer) pids() []int {
	if p.etcd == nil {
		return []int{p.server.PID()}
	}
	return []int{p.server.PID(), p.etcd.PID()}
}

func (p *peer) dial() (*conn, error) { return dial(p.address, p.tls) }

// fleet is the set of all running peers.
type fleet struct {
	peers []*peer
	// synced is the server of which only requests are measured; nil if it is not.
	synced *peer
	// host is the cluster of upstream's sample, which serves no other client. The CustomResourceDefinition has
	// another cluster.
	host *kube.Cluster
	stop []func()
}

// startFleet starts the measured servers. The caller closes the returned fleet, even after an error.
func startFleet(ctx context.Context, s settings, dir string) (*fleet, error) {
	f := &fleet{}
	wardle := filepath.Join(s.bin, "wardle")
	for _, peer := range []struct {
		name  string
		start func() error
	}{
		{embedded, func() error { return f.startAnnex(ctx, s.bin, wardle, dir, embedded, false) }},
		{embeddedBefore, func() error { return f.startAnnex(ctx, s.bin, s.before, dir, embeddedBefore, false) }},
		{annexed, func() error { return f.startAnnex(ctx, s.bin, wardle, dir, annexed, true) }},
		{annexedBefore, func() error { return f.startAnnex(ctx, s.bin, s.before, dir, annexedBefore, true) }},
		{sample, func() error { return f.startSample(ctx, s.bin, dir) }},
		{crd, func() error { return f.startResource(ctx, s.bin, filepath.Join(dir, "crd")) }},
		{bare, func() error { return f.startBare(ctx, s.bin, dir, bare, "-objects", fmt.Sprint(s.objects)) }},
		{synced, func() error { return f.startBare(ctx, s.bin, dir, synced, "-log", filepath.Join(dir, "synced.log")) }},
	} {
		if !s.measures(peer.name) {
			continue
		}
		if err := peer.start(); err != nil {
			return f, err
		}
	}
	return f, nil
}

// startCluster starts a kube-apiserver and its etcd. It starts no controllers, because their work is not measured.
func (f *fleet) startCluster(ctx context.Context, bin, dir string) (*kube.Cluster, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	cluster, err := kube.Start(ctx, kube.Options{Bin: bin, Dir: dir, Durable: true, Controllers: []string{}})
	if err != nil {
		return nil, err
	}
	f.stop = append(f.stop, cluster.Etcd.Kill, cluster.APIServer.Kill)
	return cluster, nil
}

// close ends all started processes, if there are any left. Their data is not read again.
func (f *fleet) close() {
	for i := range f.stop {
		f.stop[len(f.stop)-1-i]()
	}
	f.stop, f.peers, f.synced = nil, nil, nil
}

// requested returns the peers whose requests are measured.
func (f *fleet) requested() []*peer {
	if f.synced == nil {
		return f.peers
	}
	return append(slices.Clone(f.peers), f.synced)
}

func (f *fleet) startEtcd(ctx context.Context, bin, dir, name string) (*kube.Etcd, error) {
	etcd, err := kube.StartDurableEtcd(ctx, bin, dir, name)
	if err != nil {
		return nil, err
	}
	f.stop = append(f.stop, etcd.Kill)
	return etcd, nil
}

// startAnnex starts the project's sample alone; its administrator sends the requests.
func (f *fleet) startAnnex(ctx context.Context, bin, program, dir, name string, onEtcd bool) error {
	p := &peer{name: name}
	data := filepath.Join(dir, "annex-"+name)
	args := []string{"serve", "--data-dir", data, "--profiling"} // costs nothing unless it is used
	if onEtcd {
		etcd, err := f.startEtcd(ctx, bin, dir, "etcd-of-"+name)
		if err != nil {
			return err
		}
		p.etcd = etcd
		args = append(args, "--storage", "etcd", "--etcd-servers", etcd.Endpoint())
	}
	// The administrator's certificate exists once the server is ready.
	config := func() (*rest.Config, error) {
		return clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	}
	return f.start(ctx, dir, p, kube.Program{
		Name: "annex-" + name, Path: program, Ports: 1,
		Args: func(ports []int) []string { return append(args, "--secure-port", fmt.Sprint(ports[0])) },
	}, config)
}

// startSample starts upstream's sample API server and its cluster, which it asks to authenticate callers. It knows a
// member of system:masters by the certificate alone.
func (f *fleet) startSample(ctx context.Context, bin, dir string) error {
	var err error
	if f.host, err = f.startCluster(ctx, bin, filepath.Join(dir, "host")); err != nil {
		return err
	}
	etcd, err := f.startEtcd(ctx, bin, dir, "etcd-of-"+sample)
	if err != nil {
		return err
	}
	authority, err := kube.NewAuthority(sample)
	if err != nil {
		return err
	}
	pair, err := authority.Server("127.0.0.1")
	if err != nil {
		return err
	}
	cert, key, err := pair.Write(dir, sample)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, sample+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, f.host.Admin()); err != nil {
		return err
	}
	config := func() (*rest.Config, error) {
		c := f.host.Admin()
		c.CAData = authority.PEM()
		return c, nil
	}
	return f.start(ctx, dir, &peer{name: sample, etcd: etcd}, kube.Program{
		Name: "sample-apiserver", Path: filepath.Join(bin, "sample-apiserver"), Ports: 1,
		Args: func(ports []int) []string {
			return []string{
				"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]), "--tls-cert-file", cert, "--tls-private-key-file", key,
				"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
				"--etcd-servers", etcd.Endpoint(),
			}
		},
	}, config)
}

// startBare starts a server that keeps no objects, with flags of its own.
func (f *fleet) startBare(ctx context.Context, bin, dir, name string, flags ...string) error {
	authority, err := kube.NewAuthority(name)
	if err != nil {
		return err
	}
	pair, err := authority.Server("127.0.0.1")
	if err != nil {
		return err
	}
	cert, key, err := pair.Write(dir, name)
	if err != nil {
		return err
	}
	config := func() (*rest.Config, error) {
		return &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: authority.PEM()}}, nil
	}
	return f.start(ctx, dir, &peer{name: name}, kube.Program{
		Name: name, Path: filepath.Join(bin, "bare"), Ports: 1,
		Args: func(ports []int) []string {
			return append([]string{"-address", fmt.Sprintf("127.0.0.1:%d", ports[0]), "-cert", cert, "-key", key}, flags...)
		},
	}, config)
}

func (f *fleet) start(ctx context.Context, dir string, p *peer, program kube.Program, config func() (*rest.Config, error)) error {
	program.Ready = func(ctx context.Context, ports []int) error {
		p.address = fmt.Sprintf("127.0.0.1:%d", ports[0])
		c, err := config()
		if err != nil {
			return err
		}
		if p.tls, err = rest.TLSConfigFor(c); err != nil {
			return err
		}
		return p.ready(ctx)
	}
	process, err := kube.Run(ctx, dir, program)
	if err != nil {
		return err
	}
	f.stop = append(f.stop, process.Kill)
	p.server = process
	if p.name == synced {
		f.synced = p
		return nil
	}
	f.peers = append(f.peers, p)
	return nil
}

// ready polls often, so that the time of a start is known to a millisecond, for as long as the harness would have
// waited otherwise.
func (p *peer) ready(ctx context.Context) error {
	var err error
	for range 20 {
		if err = p.readyNow(); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return err
}

func (p *peer) readyNow() error {
	c, err := p.dial()
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.get("/readyz")
	return err
}

// definition is the kind as a CustomResourceDefinition: the same fields, the same rules for them, and no more.
const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"flunders.wardle.example.com"},"spec":{"group":"wardle.example.com","scope":"Namespaced",
"names":{"plural":"flunders","singular":"flunder","kind":"Flunder","listKind":"FlunderList"},
"versions":[{"name":"v1alpha1","served":true,"storage":true,"subresources":{"status":{}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{
"spec":{"type":"object","properties":{"reference":{"type":"string"},"referenceType":{"type":"string","enum":["Flunder","Fischer"]}}},
"status":{"type":"object"}}}}}]}}`

// startResource starts a cluster that serves the kind itself.
func (f *fleet) startResource(ctx context.Context, bin, dir string) error {
	cluster, err := f.startCluster(ctx, bin, dir)
	if err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(cluster.Admin())
	if err != nil {
		return err
	}
	p := &peer{
		name:    crd,
		address: fmt.Sprintf("127.0.0.1:%d", cluster.APIServer.Port(0)),
		tls:     tlsConfig,
		server:  cluster.APIServer,
		etcd:    cluster.Etcd,
	}
	c, err := p.dial()
	if err != nil {
		return err
	}
	defer c.close()
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if _, err := c.do("POST", path, "application/json", []byte(definition)); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the CustomResourceDefinition is not established: %w", err)
		}
		if _, err := c.get(flunders(requestsNamespace)); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.peers = append(f.peers, p)
	return nil
}

// namespaces creates the namespaces of objects, unless they belong to the host.
func (f *fleet) namespaces() error {
	for _, p := range f.peers {
		c, err := p.dial()
		if p.name == sample { // its namespaces are its host's
			config, configErr := rest.TLSConfigFor(f.host.Admin())
			if configErr != nil {
				return configErr
			}
			c, err = dial(fmt.Sprintf("127.0.0.1:%d", f.host.APIServer.Port(0)), config)
		}
		if err != nil {
			return err
		}
		for _, name := range []string{requestsNamespace, watchNamespace, listNamespace, churnNamespace} {
			body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
			if _, err := c.do("POST", "/api/v1/namespaces", "application/json", body); err != nil {
				c.close()
				return err
			}
		}
		c.close()
	}
	return nil
}

// versions returns the versions of the running programs.
func (f *fleet) versions(ctx context.Context, s settings) (map[string]string, error) {
	found, bin := map[string]string{}, s.bin
	for _, program := range []struct {
		name, flag string
		peers      []string
	}{{"etcd", "--version", []string{annexed, annexedBefore, sample, crd}}, {"kube-apiserver", "--version", []string{sample, crd}}} {
		if !slices.ContainsFunc(program.peers, s.measures) {
			continue
		}
		out, err := exec.CommandContext(ctx, filepath.Join(bin, program.name), program.flag).Output()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", program.name, program.flag, err)
		}
		line, _, _ := bytes.Cut(out, []byte{'\n'})
		found[program.name] = string(line)
	}
	// A Go program contains the versions of its modules.
	for name, module := range map[string]string{"sample-apiserver": "k8s.io/sample-apiserver", "wardle": "k8s.io/apiserver"} {
		if name == "sample-apiserver" && !s.measures(sample) {
			continue
		}
		out, err := exec.CommandContext(ctx, "go", "version", "-m", filepath.Join(bin, name)).Output()
		if err != nil {
			return nil, fmt.Errorf("go version -m %s: %w", name, err)
		}
		for line := range bytes.Lines(out) {
			fields := bytes.Fields(line)
			if len(fields) >= 3 && string(fields[1]) == module {
				found[name] = module + " " + string(fields[2])
			}
		}
		if found[name] == "" {
			return nil, errors.New(name + " does not say of which version of " + module + " it is")
		}
	}
	return found, nil
}
