package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex/e2e/cluster/kube"
)

const group = "wardle.example.com"

var (
	alphaFlunders = schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "flunders"}
	betaFlunders  = schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "flunders"}
)

// wardle is a server of wardle.example.com that has joined the cluster: upstream's sample API server, or ours.
type wardle struct {
	*kube.Process
	name string
	// upstream is true of the sample API server.
	upstream bool
	etcd     *kube.Etcd // nil if it keeps its objects itself
	// serving signed its certificate, for the names of the service and of this machine.
	serving *kube.Authority
}

// startWardle starts a kind of server.
type startWardle func(t *testing.T, name string, etcd *kube.Etcd) *wardle

// startSample starts upstream's sample API server.
func startSample(t *testing.T, name string, etcd *kube.Etcd) *wardle {
	t.Helper()
	return newWardle(t, name, "sample-apiserver", etcd, func(common []string) []string {
		return append(common, "--etcd-servers", etcd.Endpoint())
	})
}

// newWardle starts a server with the flags that upstream's and ours have in common. It ends with the test.
func newWardle(t *testing.T, name, program string, etcd *kube.Etcd, args func(common []string) []string) *wardle {
	t.Helper()
	w := &wardle{name: name, upstream: program == "sample-apiserver", etcd: etcd}
	var err error
	if w.serving, err = kube.NewAuthority(name); err != nil {
		t.Fatal(err)
	}
	pair, err := w.serving.Server("api.wardle.svc", "localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(run, name)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(run, name+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, identity(t)); err != nil {
		t.Fatal(err)
	}
	w.Process, err = kube.Run(ending(t), run, kube.Program{
		Name: name, Path: filepath.Join(bin, program), Ports: 1,
		Args: func(ports []int) []string {
			return args([]string{
				"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]), "--tls-cert-file", cert, "--tls-private-key-file", key,
				"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
			})
		},
		Ready: func(ctx context.Context, ports []int) error {
			return ready(
				ctx,
				&rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), TLSClientConfig: rest.TLSClientConfig{CAData: w.serving.PEM()}},
			)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.upstream {
			w.Kill() // it takes a minute to end while clients watch through the cluster
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(w.Tail(), "panic") {
			t.Errorf("%s panicked:\n%s", w.name, w.Tail())
		}
	})
	return w
}

// register directs the cluster's wardle.example.com to the server, until the test is over.
func (w *wardle) register(t *testing.T) {
	t.Helper()
	if err := host.Register(ending(t), w.apiService("v1alpha1", 15), w.apiService("v1beta1", 20)); err != nil {
		t.Fatalf("%v\n%s", err, w.Tail())
	}
	t.Cleanup(func() {
		if err := host.Unregister(context.Background(), "v1alpha1."+group, "v1beta1."+group); err != nil {
			t.Error(err)
		}
	})
}

func (w *wardle) apiService(version string, priority int32) *apiregistrationv1.APIService {
	port := int32(w.Port(0))
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: priority,
			Service:  &apiregistrationv1.ServiceReference{Namespace: "wardle", Name: "api", Port: &port},
			CABundle: w.serving.PEM(),
		},
	}
}

// direct returns a client's configuration for the server itself, bypassing the cluster.
func (w *wardle) direct(config *rest.Config) *rest.Config {
	direct := rest.CopyConfig(config)
	direct.Host = fmt.Sprintf("https://127.0.0.1:%d", w.Port(0))
	direct.CAData = w.serving.PEM()
	return direct
}

// identity returns the servers' identity in the cluster: the service account of upstream's manifests, with the
// permissions that these grant.
func identity(t *testing.T) *rest.Config {
	t.Helper()
	stock := stockManifests(t)
	admin := newKubectl(t, host.Admin())
	for _, file := range []string{"ns", "sa", "auth-delegator", "auth-reader", "rbac", "rbac-bind"} {
		admin.must("apply", "-f", filepath.Join(stock, file+".yaml"))
	}
	admin.must("apply", "-f", "testdata/newer-permissions.yaml")
	config, err := host.ServiceAccount(ending(t), "wardle", "apiserver")
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// stockManifests returns the folder of upstream's manifests, in the module that its server is built from.
func stockManifests(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/sample-apiserver")
	cmd.Dir = "sample"
	cmd.Env = append(os.Environ(), "GOWORK=off", "PWD=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "artifacts", "example")
}

// kubectl is the program, with the credentials of one user.
type kubectl struct {
	t          *testing.T
	kubeconfig string
	dir        string
}

func newKubectl(t *testing.T, config *rest.Config) *kubectl {
	t.Helper()
	k := &kubectl{t: t, dir: t.TempDir()}
	k.kubeconfig = filepath.Join(k.dir, "kubeconfig")
	if err := kube.WriteKubeconfig(k.kubeconfig, config); err != nil {
		t.Fatal(err)
	}
	return k
}

// path returns the path of a file in kubectl's own directory.
func (k *kubectl) path(name string) string { return filepath.Join(k.dir, name) }

// file writes a file there.
func (k *kubectl) file(name, content string) string {
	k.t.Helper()
	if err := os.WriteFile(k.path(name), []byte(content), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return k.path(name)
}

func (k *kubectl) command(ctx context.Context, stdin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), args...)
	cmd.Env = []string{"HOME=" + k.dir, "KUBECONFIG=" + k.kubeconfig, "PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// run returns kubectl's standard output and error, and an error if it failed.
func (k *kubectl) run(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	cmd := k.command(ctx, stdin, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// must runs a command that has to succeed.
func (k *kubectl) must(args ...string) string {
	k.t.Helper()
	return k.given("", args...)
}

// given is must with a file at standard input.
func (k *kubectl) given(stdin string, args ...string) string {
	k.t.Helper()
	out, err := k.run(stdin, args...)
	if err != nil {
		k.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// prints runs a command that has to succeed and whose output has to contain a text.
func (k *kubectl) prints(want string, args ...string) {
	k.t.Helper()
	if out := k.must(args...); !strings.Contains(out, want) {
		k.t.Errorf("kubectl %s printed, without %q:\n%s", strings.Join(args, " "), want, out)
	}
}

// refused runs a command that has to fail with a reason.
func (k *kubectl) refused(stdin, why string, args ...string) {
	k.t.Helper()
	out, err := k.run(stdin, args...)
	if err == nil || !strings.Contains(out, why) {
		k.t.Errorf("kubectl %s: %v, want a failure that says %q:\n%s", strings.Join(args, " "), err, why, out)
	}
}

// ending returns a context that ends with the test, and before its patience does.
func ending(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
