package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// deployed is a server that the cluster knows only by the output of its verb manifests. Its pods are processes of
// this machine, with the arguments of the pod, the rights of its service account, and free ports.
type deployed struct {
	t               *testing.T
	namespace, name string
	program         string
	services        []string // its APIServices
	admin           *kubectl
	args            []string
	config          *rest.Config
}

const deployedGroup = "wardle.example.com"

var deployedServices = []string{"v1beta1." + deployedGroup, "v1alpha1." + deployedGroup}

// deploy applies the manifests for a namespace, and deletes them after the test.
func deploy(t *testing.T, namespace string, flags ...string) *deployed {
	t.Helper()
	d := &deployed{
		t:         t,
		namespace: namespace,
		name:      "wardle",
		program:   filepath.Join(bin, "wardle"),
		services:  deployedServices,
		admin:     newKubectl(t, host.Admin()),
	}
	text := manifestsOf(t, append([]string{"--namespace", namespace}, flags...)...)
	d.admin.given(text, "apply", "--server-side", "-f", "-")
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := d.admin.command(ctx, text, "delete", "--ignore-not-found", "--wait=false", "-f", "-").CombinedOutput(); err != nil {
			t.Errorf("delete the manifests: %v\n%s", err, out)
		}
	})
	for document := range strings.SplitSeq(text, "\n---\n") {
		var workload struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []struct{ Args []string } }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &workload); err != nil {
			t.Fatal(err)
		}
		if workload.Kind == "StatefulSet" || workload.Kind == "Deployment" {
			d.args = workload.Spec.Template.Spec.Containers[0].Args
		}
	}
	d.home()
	return d
}

// home directs the server's Service to this machine, because no proxy serves the addresses of services, and creates
// the pods' credentials.
func (d *deployed) home() {
	d.t.Helper()
	d.admin.must(
		"--namespace",
		d.namespace,
		"patch",
		"service",
		d.name,
		"--type=merge",
		"-p",
		`{"spec":{"type":"ExternalName","externalName":"localhost","clusterIP":null,"clusterIPs":null,"selector":null}}`,
	)
	var err error
	if d.config, err = host.ServiceAccount(ending(d.t), d.namespace, d.name); err != nil {
		d.t.Fatal(err)
	}
}

// pod starts a server as the pod would, apart from differences of this machine, and directs the cluster to it.
func (d *deployed) pod(name string, more ...string) *kube.Process {
	d.t.Helper()
	kubeconfig := filepath.Join(run, d.namespace+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, d.config); err != nil {
		d.t.Fatal(err)
	}
	process, err := kube.Run(ending(d.t), run, kube.Program{
		Name: d.namespace + "-" + name, Path: d.program, Ports: 1,
		Args: func(ports []int) []string {
			args := []string{}
			for _, arg := range d.args {
				switch {
				case strings.HasPrefix(arg, "--bind-address="):
					arg = "--bind-address=127.0.0.1"
				case strings.HasPrefix(arg, "--secure-port="):
					arg = fmt.Sprintf("--secure-port=%d", ports[0])
				case strings.HasPrefix(arg, "--data-dir="):
					arg = "--data-dir=" + filepath.Join(run, d.namespace+"-"+name)
				case strings.HasPrefix(arg, "--shutdown-delay-duration="):
					arg = "--shutdown-delay-duration=1s"
				}
				args = append(args, strings.ReplaceAll(arg, "$(POD_NAMESPACE)", d.namespace))
			}
			return slices.Concat(args, []string{"--kubeconfig", kubeconfig}, more)
		},
		// A kubelet does not verify the certificate either.
		Ready: func(ctx context.Context, ports []int) error {
			return ready(
				ctx,
				&rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
			)
		},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if process.Running() {
			if err := process.Stop(); err != nil {
				d.t.Error(err)
			}
		}
	})
	return process
}

// lead directs the cluster's requests to a process, and waits until they arrive.
func (d *deployed) lead(process *kube.Process) {
	d.t.Helper()
	for _, name := range d.services {
		d.admin.must("patch", "apiservice", name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"service":{"port":%d}}}`, process.Port(0)))
	}
	d.available(apiregistrationv1.ConditionTrue)
}

func (d *deployed) available(status apiregistrationv1.ConditionStatus) {
	d.t.Helper()
	for _, name := range d.services {
		if err := host.AwaitAvailable(ending(d.t), name, status); err != nil {
			d.t.Fatal(err)
		}
	}
}

func apiServiceNow(t *testing.T, name string) *apiregistrationv1.APIService {
	t.Helper()
	client, err := aggregator.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.ApiregistrationV1().APIServices().Get(ending(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func flunder(namespace, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": deployedGroup + "/v1beta1", "kind": "Flunder",
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec":     map[string]any{},
	}}
}

// The manifests and the program are sufficient. The server has only the rights of the roles in the manifests.
func TestManifests_deployServer(t *testing.T) {
	d := deploy(t, "deployed")
	process := d.pod("0")
	d.lead(process)
	d.admin.given("apiVersion: wardle.example.com/v1beta1\nkind: Flunder\nmetadata: {name: one, namespace: default}\n", "apply", "-f", "-")
	d.admin.prints("one", "get", "flunders")
	if log := process.Tail(); strings.Contains(log, "forbidden") || strings.Contains(log, "does not permit") {
		t.Errorf("the roles do not suffice:\n%s", log)
	}

	t.Run("ABundleThatSomebodyOverwroteIsPutRight", func(t *testing.T) {
		want := apiServiceNow(t, deployedServices[0]).Spec.CABundle
		other, err := kube.NewAuthority("other")
		if err != nil {
			t.Fatal(err)
		}
		d.admin.must(
			"patch",
			"apiservice",
			deployedServices[0],
			"--type=merge",
			"-p",
			`{"spec":{"caBundle":"`+base64.StdEncoding.EncodeToString(other.PEM())+`"}}`,
		)
		testwait.NoError(t, "the bundle is restored", func(context.Context) error {
			if got := apiServiceNow(t, deployedServices[0]).Spec.CABundle; string(got) != string(want) {
				return errors.New("the bundle is another's")
			}
			return nil
		})
		if !strings.Contains(process.Tail(), "Another client changed the caBundle of the APIService") {
			t.Errorf("not logged:\n%s", process.Tail())
		}
		d.available(apiregistrationv1.ConditionTrue)
	})

	t.Run("AnAPIServiceOfAnotherServerIsLeftAlone", func(t *testing.T) {
		d.admin.must("create", "namespace", "rival")
		defer d.admin.must("delete", "namespace", "rival", "--wait=false")
		defer d.lead(process)
		d.admin.must(
			"patch",
			"apiservice",
			deployedServices[1],
			"--type=merge",
			"-p",
			`{"spec":{"caBundle":null,"insecureSkipTLSVerify":true,"service":{"namespace":"rival","name":"wardle","port":443}}}`,
		)
		testwait.NoError(t, "the server says whose it is", func(context.Context) error {
			if !strings.Contains(process.Tail(), "points to the service rival/wardle:443 and not to deployed/wardle") {
				return errors.New("it says nothing")
			}
			return nil
		})
		if spec := apiServiceNow(
			t,
			deployedServices[1],
		).Spec; spec.Service.Namespace != "rival" || spec.CABundle != nil ||
			!spec.InsecureSkipTLSVerify {
			t.Errorf("it was changed: %+v", spec)
		}
		d.admin.must(
			"patch",
			"apiservice",
			deployedServices[1],
			"--type=merge",
			"-p",
			`{"spec":{"insecureSkipTLSVerify":null,"service":{"namespace":"deployed"}}}`,
		)
	})

	t.Run("AServerThatIsScaledToNothingStrandsNoNamespace", func(t *testing.T) {
		d.admin.must("--namespace", d.namespace, "scale", "statefulset", "wardle", "--replicas=0")
		if err := process.Stop(); err != nil {
			t.Fatal(err)
		}
		for _, name := range deployedServices {
			if s := apiServiceNow(t, name); s.Spec.Service != nil || !strings.HasPrefix(s.Annotations["annex/left-service"], "deployed/wardle:") {
				t.Errorf("%s: service %v, annotations %v", name, s.Spec.Service, s.Annotations)
			}
		}
		d.available(apiregistrationv1.ConditionTrue) // an APIService without a service needs no answer
		d.admin.must("create", "namespace", "free")
		d.admin.must("delete", "namespace", "free", "--timeout=60s") // waits
		d.admin.refused("", "the server ", "get", "flunders")        // does not have it; the message depends on the age of kubectl's discovery

		d.admin.must("--namespace", d.namespace, "scale", "statefulset", "wardle", "--replicas=1")
		if err := process.Start(ending(t)); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "the server is back", func(context.Context) error {
			out, err := d.admin.run("", "get", "flunders")
			if err != nil || !strings.Contains(out, "one") {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})

	t.Run("AServerThatRestartsStaysInItsAPIServices", func(t *testing.T) {
		before := apiServiceNow(t, deployedServices[0])
		if err := process.Stop(); err != nil {
			t.Fatal(err)
		}
		if after := apiServiceNow(
			t,
			deployedServices[0],
		); after.Spec.Service == nil ||
			string(after.Spec.CABundle) != string(before.Spec.CABundle) {
			t.Errorf("it left: %+v", after.Spec)
		}
		if err := process.Start(ending(t)); err != nil {
			t.Fatal(err)
		}
		d.available(apiregistrationv1.ConditionTrue)
		d.admin.prints("one", "get", "flunders")
	})
}

// certificatesLive returns the duration of the test of short-lived certificates: a minute, unless ANNEX_CERTIFICATES
// sets another one.
func certificatesLive(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("ANNEX_CERTIFICATES")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Two replicas, whose certificates live for half a minute, are under load through the cluster, over long-lived
// connections and new ones for every request. No request fails.
func TestServingCertificate_renewalUnderLoad(t *testing.T) {
	etcd := startEtcd(t)
	d := deploy(t, "renewed", "--storage", "etcd", "--etcd-servers", "https://etcd.example.com:2379")
	for i, arg := range d.args {
		if strings.HasPrefix(arg, "--etcd-servers=") {
			d.args[i] = "--etcd-servers=" + etcd.Endpoint()
		}
	}
	first, second := d.pod("0", "--certificate-lifetime=30s"), d.pod("1", "--certificate-lifetime=30s")
	d.lead(first)

	ctx, cancel := context.WithTimeout(t.Context(), certificatesLive(t))
	defer cancel()
	var load sync.WaitGroup
	var requests, failures atomic.Int64
	fail := func(what string, err error) {
		if failures.Add(1) < 10 {
			t.Errorf("%s: %v", what, err)
		}
	}
	client, err := dynamic.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	flunders := client.Resource(betaFlunders).Namespace("default")
	for worker := range 4 {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("load-%d-%d", worker, n)
				_, err := flunders.Create(t.Context(), flunder("default", name), metav1.CreateOptions{})
				if err == nil {
					err = flunders.Delete(t.Context(), name, metav1.DeleteOptions{})
				}
				if err != nil && !apierrors.IsNotFound(err) {
					fail("through the cluster", err)
				}
				requests.Add(2)
				pause(ctx, 20*time.Millisecond)
			}
		})
	}
	// As a cluster does when it connects anew: the current bundle verifies each replica.
	serials := map[string]bool{}
	bundles := map[string]bool{}
	load.Go(func() {
		for ctx.Err() == nil {
			bundle := apiServiceNow(t, deployedServices[0]).Spec.CABundle
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(bundle)
			bundles[string(bundle)] = true
			for _, process := range []*kube.Process{first, second} {
				conn, err := tls.Dial(
					"tcp",
					fmt.Sprintf("127.0.0.1:%d", process.Port(0)),
					&tls.Config{RootCAs: roots, ServerName: "wardle.renewed.svc"},
				)
				if err != nil {
					fail("a new connection", err)
					continue
				}
				serials[conn.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
				conn.Close()
				requests.Add(1)
			}
			pause(ctx, 100*time.Millisecond)
		}
	})
	load.Wait()
	t.Logf(
		"certificates: %s, %d requests, %d failed; %d certificates, %d bundles",
		certificatesLive(t),
		requests.Load(),
		failures.Load(),
		len(serials),
		len(bundles),
	)
	if least := int(certificatesLive(t) / (25 * time.Second)); len(serials) < least {
		t.Errorf("only %d certificates, want at least %d", len(serials), least)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
