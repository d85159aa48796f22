package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// ward is the namespace of the servers with faults.
const ward = "ward"

// TestDoctor causes faults, and checks that the verb names each of them, and nothing else.
func TestDoctor(t *testing.T) {
	d := newDoctor(t)
	d.k.must("create", "namespace", ward)
	account(t, d.k, "healthy", true, true)

	t.Run("Healthy", func(t *testing.T) {
		s := serve(t, d, "healthy.example.com", fault{})
		d.finds(t, s, nil)
		d.finds(t, s, nil, "--service-account", ward+"/healthy")
	})
	t.Run("HealthyAnnex", func(t *testing.T) {
		startAnnex(t, "doctor-annex", nil).register(t)
		for _, version := range []string{"v1alpha1.", "v1beta1."} {
			d.finds(t, version+group, nil, "--service-account", "wardle/apiserver")
		}
	})
	t.Run("SomebodyWhoMayLittle", func(t *testing.T) {
		eve := &doctor{k: newKubectl(t, user(t, "eve")), program: d.program}
		if stdout, stderr, code := eve.output(t); code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 ||
			!strings.HasPrefix(
				stderr,
				"annex: doctor: list APIServices: apiservices.apiregistration.k8s.io is forbidden: User \"eve\" cannot list",
			) {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
		d.k.must("create", "clusterrole", "eve", "--verb=list", "--resource=apiservices.apiregistration.k8s.io")
		d.k.must("create", "clusterrolebinding", "eve", "--clusterrole=eve", "--user=eve")
		name := serve(t, d, "little.example.com", fault{})
		eve.finds(t, name, nil)
		found, _ := eve.findings(t, name)
		for _, f := range found {
			if known := f.State == "ok"; known != slices.Contains(
				[]string{
					"APIService",
					"priorities",
					"connection",
					"certificate name",
					"certificate authority",
					"availability",
					"discovery",
					"OpenAPI",
				},
				f.Link,
			) {
				t.Errorf("%+v", f)
			}
		}
	})
	t.Run("WrongCA", func(t *testing.T) {
		other, err := kube.NewAuthority("other")
		if err != nil {
			t.Fatal(err)
		}
		right, err := kube.NewAuthority("right")
		if err != nil {
			t.Fatal(err)
		}
		name := serve(t, d, "authority.example.com", fault{authority: right, caBundle: other.PEM()})
		d.finds(t, name, []string{"UnknownAuthority"})
		d.repair(t, name, "kubectl patch ", "ca.crt", right.PEM())
		d.finds(t, name, nil)
	})
	t.Run("ExpiredCertificate", func(t *testing.T) {
		d.finds(t, serve(t, d, "expired.example.com", fault{end: time.Now().Add(-time.Hour)}), []string{"CertificateExpired"})
	})
	t.Run("MissingSAN", func(t *testing.T) {
		d.finds(t, serve(t, d, "name.example.com", fault{names: []string{"localhost", "127.0.0.1"}}), []string{"NameNotInCertificate"})
	})
	t.Run("MissingAuthReader", func(t *testing.T) { missingAuthReader(t, d) })
	t.Run("AnnexMissingAuthReader", func(t *testing.T) { annexMissingAuthReader(t, d) })
	t.Run("MissingDelegator", func(t *testing.T) { missingDelegator(t, d) })
	t.Run("NoEndpoints", func(t *testing.T) {
		d.k.given("apiVersion: v1\nkind: Service\nmetadata: {name: empty, namespace: ward}\nspec: {selector: {app: absent}, ports: [{port: "+
			"443}]}\n", "apply", "-f", "-")
		name := register(t, "endpoints.example.com", "empty", 443, nil)
		if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionFalse); err != nil {
			t.Fatal(err)
		}
		d.finds(t, name, []string{"NoEndpoints"})
	})
	t.Run("PodsNotReady", func(t *testing.T) {
		// No kubelet runs pods here; the cause is found in the account that one of them names.
		account(t, d.k, "pods-no-reader", false, true)
		d.k.given(unready, "apply", "-f", "-")
		name := register(t, "pods.example.com", "pods", 443, nil)
		if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionFalse); err != nil {
			t.Fatal(err)
		}
		d.finds(t, name, []string{"EndpointsNotReady", "AuthReaderMissing"})
		d.repair(t, name, "kubectl -n kube-system create ", "none", nil)
		d.finds(t, name, []string{"EndpointsNotReady"})
	})
	t.Run("PortClosed", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
		external(d.k, "closed")
		name := register(t, "closed.example.com", "closed", port, nil)
		if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionFalse); err != nil {
			t.Fatal(err)
		}
		d.finds(t, name, []string{"PortClosed"})
	})
	t.Run("PriorityClash", func(t *testing.T) {
		// Definitions of custom resources have the priority 1000, too.
		name := serve(t, d, "clash.example.com", fault{})
		d.k.given(clashing, "apply", "-f", "-")
		t.Cleanup(func() { d.k.must("delete", "crd", "clashes.other.example.com") })
		d.finds(t, name, []string{"PriorityClash"})
		d.repair(t, name, "kubectl ", "none", nil)
		d.finds(t, name, nil)
	})
	t.Run("GroupClaimedTwice", func(t *testing.T) {
		name := serve(t, d, "twice.example.com", fault{})
		other := serve(t, d, "twice.example.com", fault{version: "v2"})
		d.finds(t, name, []string{"GroupClaimedTwice"})
		d.finds(t, other, []string{"GroupClaimedTwice"})
	})
	t.Run("SlowDiscovery", func(t *testing.T) {
		d.finds(t, serve(t, d, "slow.example.com", fault{delay: 400 * time.Millisecond}), []string{"SlowDiscovery"})
	})
	t.Run("SilentServer", func(t *testing.T) {
		d.finds(t, serve(t, d, "silent.example.com", fault{delay: patience}), []string{"NoAnswer"})
	})
	t.Run("NoEndOfListBookmark", func(t *testing.T) {
		d.finds(t, serve(t, d, "bookmark.example.com", fault{noBookmark: true}), []string{"NoInitialEventsEnd"}, "--timeout", "3s")
	})
}

const unready = `apiVersion: v1
kind: Service
metadata: {name: pods, namespace: ward}
spec: {selector: {app: pods}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pods-0, namespace: ward, labels: {app: pods}}
spec:
  serviceAccountName: pods-no-reader
  containers: [{name: api, image: example.com/none}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pods-1, namespace: ward, labels: {kubernetes.io/service-name: pods}}
addressType: IPv4
ports: [{name: "", port: 8443}]
endpoints: [{addresses: [10.9.8.7], conditions: {ready: false}}]
`

const clashing = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clashes.other.example.com}
spec:
  group: other.example.com
  scope: Namespaced
  names: {plural: clashes, singular: clash, kind: Clash}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// missingAuthReader starts upstream's server with a service account that may not read the config of the front proxy.
// The server ends at once, so that at first nothing listens.
func missingAuthReader(t *testing.T, d *doctor) {
	account(t, d.k, "no-reader", false, true)
	port, _ := startAs(t, "no-reader", "sample-apiserver", "--etcd-servers", host.Etcd.Endpoint())
	external(d.k, "no-reader")
	name := register(t, "reader.example.com", "no-reader", port, nil)
	if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionFalse); err != nil {
		t.Fatal(err)
	}
	account := []string{"--service-account", ward + "/no-reader"}
	d.finds(t, name, []string{"PortClosed", "AuthReaderMissing"}, account...)
	if first := d.first(t, name, account...); first != "AuthReaderMissing" {
		t.Errorf("without --all: %q, want what the port is closed for", first)
	}
	if out, _ := d.run(t, append(account, name)...); !strings.Contains(out, "kubectl -n kube-system create rolebinding "+
		"no-reader.ward:extension-apiserver-authentication-reader") {
		t.Errorf("no repair:\n%s", out)
	}
}

// missingDelegator starts upstream's server with a service account that may not create TokenReviews and
// SubjectAccessReviews. It only serves administrators.
func missingDelegator(t *testing.T, d *doctor) {
	account(t, d.k, "no-delegator", true, false)
	port, authority := startAs(t, "no-delegator", "sample-apiserver", "--etcd-servers", host.Etcd.Endpoint())
	if authority == nil {
		t.Fatal("the server ended")
	}
	external(d.k, "no-delegator")
	name := registerVersion(t, group, "v1alpha1", "no-delegator", port, authority.PEM())
	if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionTrue); err != nil {
		t.Fatal(err)
	}
	account := []string{"--service-account", ward + "/no-delegator"}
	// The cluster may read the lists of resources, but not OpenAPI, for which it is an ordinary user.
	d.finds(t, name, []string{"AuthDelegatorMissing", "OpenAPIMissing"}, account...)
	if first := d.first(t, name, account...); first != "AuthDelegatorMissing" {
		t.Errorf("without --all: %q", first)
	}

	if out, code := d.run(t, append(account, "--fix", "--dry-run", name)...); code != 1 || !strings.Contains(out, "would create:") {
		t.Errorf("--dry-run: exit code %d\n%s", code, out)
	}
	if first := d.first(t, name, account...); first != "AuthDelegatorMissing" {
		t.Errorf("after --dry-run: %q", first)
	}
	if out, _ := d.run(
		t,
		append(account, "--fix", "--yes", name)...); !strings.Contains(out, "done: kubectl create clusterrolebinding") ||
		strings.Contains(out, "AuthDelegatorMissing") {
		t.Errorf("--fix:\n%s", out)
	}
}

// annexMissingAuthReader starts our server with the same fault. The server does not end, but is not ready and
// authenticates no caller.
func annexMissingAuthReader(t *testing.T, d *doctor) {
	account(t, d.k, "annex-no-reader", false, true)
	port, authority := startAs(t, "annex-no-reader", "wardle", "serve", "--aggregated", "--data-dir", t.TempDir())
	if authority == nil {
		t.Fatal("the server ended")
	}
	external(d.k, "annex-no-reader")
	name := registerVersion(t, group, "v1alpha1", "annex-no-reader", port, authority.PEM())
	if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionFalse); err != nil {
		t.Fatal(err)
	}
	account := []string{"--service-account", ward + "/annex-no-reader"}
	d.finds(t, name, []string{"AuthReaderMissing", "FrontProxyRefused"}, account...)
	if first := d.first(t, name, account...); first != "AuthReaderMissing" {
		t.Errorf("without --all: %q", first)
	}
	if out, _ := d.run(
		t,
		append(account, "--fix", "--yes", name)...); !strings.Contains(
		out,
		"done: kubectl -n kube-system create rolebinding",
	) {
		t.Errorf("--fix:\n%s", out)
	}
	if err := host.AwaitAvailable(ending(t), name, apiregistrationv1.ConditionTrue); err != nil {
		t.Error(err)
	}
}

// startAs starts a server as a service account, and returns its port. The authority is nil if the server did not
// listen and has ended.
func startAs(t *testing.T, account, program string, args ...string) (int, *kube.Authority) {
	t.Helper()
	authority, err := kube.NewAuthority(account)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Server(account+".ward.svc", "localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(run, account)
	if err != nil {
		t.Fatal(err)
	}
	config, err := host.ServiceAccount(ending(t), ward, account)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(run, account+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, config); err != nil {
		t.Fatal(err)
	}
	port := 0
	process, err := kube.Run(ending(t), run, kube.Program{
		Name: account, Path: filepath.Join(bin, program), Ports: 1,
		Args: func(ports []int) []string {
			port = ports[0]
			return append(args,
				"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-private-key-file", key,
				"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)
		},
		Ready: func(ctx context.Context, ports []int) error {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
			if err != nil {
				return err
			}
			return connection.Close()
		},
	})
	if err != nil {
		t.Log(err)
		return port, nil
	}
	t.Cleanup(process.Kill)
	return port, authority
}

// account creates a service account in the ward with the permissions of a server, except for those left out.
func account(t *testing.T, k *kubectl, name string, reader, delegator bool) {
	t.Helper()
	k.must("create", "serviceaccount", name, "-n", ward)
	bind := func(kind, binding string, args ...string) {
		k.must(append([]string{"create", kind, binding, "--serviceaccount=" + ward + ":" + name}, args...)...)
	}
	if reader {
		bind("rolebinding", "ward-"+name, "-n", "kube-system", "--role=extension-apiserver-authentication-reader")
	}
	if delegator {
		bind("clusterrolebinding", "ward-"+name+"-delegator", "--clusterrole=system:auth-delegator")
	}
	k.must(
		"create",
		"clusterrole",
		"ward-"+name,
		"--verb=get,list,watch",
		"--resource=namespaces,mutatingwebhookconfigurations.admissionregistration.k8s.io,"+
			"validatingwebhookconfigurations.admissionregistration.k8s.io,"+
			"mutatingadmissionpolicies.admissionregistration.k8s.io,mutatingadmissionpolicybindings.admissionregistration.k8s.io,"+
			"validatingadmissionpolicies.admissionregistration.k8s.io,validatingadmissionpolicybindings.admissionregistration.k8s.io,"+
			"flowschemas.flowcontrol.apiserver.k8s.io,prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
	)
	bind("clusterrolebinding", "ward-"+name, "--clusterrole=ward-"+name)
}

// external creates a Service that leads to this machine.
func external(k *kubectl, name string) {
	k.t.Helper()
	k.given(
		"apiVersion: v1\nkind: Service\nmetadata: {name: "+name+", namespace: ward}\nspec: {type: ExternalName, externalName: localhost}\n",
		"apply",
		"-f",
		"-",
	)
}

func register(t *testing.T, group, service string, port int, caBundle []byte) string {
	t.Helper()
	return registerVersion(t, group, "v1", service, port, caBundle)
}

// registerVersion creates an APIService, until the test is over, and returns its name.
func registerVersion(t *testing.T, group, version, service string, port int, caBundle []byte) string {
	t.Helper()
	client, err := aggregator.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	at := int32(port)
	s := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 15, CABundle: caBundle,
			Service: &apiregistrationv1.ServiceReference{Namespace: ward, Name: service, Port: &at},
		},
	}
	if caBundle == nil {
		s.Spec.InsecureSkipTLSVerify = true
	}
	if _, err := client.ApiregistrationV1().APIServices().Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Unregister(context.Background(), s.Name); err != nil {
			t.Error(err)
		}
	})
	return s.Name
}

// fault is the fault of a server of these tests. The zero value is a healthy server.
type fault struct {
	version    string // v1 if empty
	authority  *kube.Authority
	caBundle   []byte        // differs from that of the certificate's authority
	names      []string      // of the certificate, instead of the right ones
	end        time.Time     // of the certificate
	delay      time.Duration // of the list of resources
	noBookmark bool
}

// serve starts a server of one resource, registers it and waits until the cluster has set its condition. It returns
// the name of the APIService.
func serve(t *testing.T, d *doctor, group string, f fault) string {
	t.Helper()
	if f.version == "" {
		f.version = "v1"
	}
	service, _, _ := strings.Cut(group, ".")
	service += "-" + f.version
	authority, err := kube.NewAuthority(service)
	if err != nil {
		t.Fatal(err)
	}
	if f.authority != nil {
		authority = f.authority
	}
	if f.names == nil {
		f.names = []string{service + ".ward.svc"}
	}
	if f.end.IsZero() {
		f.end = time.Now().Add(24 * time.Hour)
	}
	pair, err := authority.ServerUntil(f.end, f.names...)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen(
		"tcp",
		"127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f.handler(group), ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if f.caBundle == nil {
		f.caBundle = authority.PEM()
	}
	external(d.k, service)
	name := registerVersion(t, group, f.version, service, listener.Addr().(*net.TCPAddr).Port, f.caBundle)
	testwait.NoError(t, "the cluster has an opinion", func(context.Context) error {
		if out := d.k.must(
			"get",
			"apiservice",
			name,
			"-o",
			"jsonpath={.status.conditions[0].reason}",
		); out != "Passed" &&
			out != "FailedDiscoveryCheck" {
			return errors.New(out)
		}
		return nil
	})
	return name
}

// handler answers as an API server with a resource named by the group, which has no objects.
func (f fault) handler(group string) http.Handler {
	plural, _, _ := strings.Cut(group, ".")
	plural += "es"
	if strings.HasPrefix(group, "clash") {
		plural = "clashes"
	}
	gv := schema.GroupVersion{Group: group, Version: f.version}
	apis := "/apis/" + gv.String()
	mux := http.NewServeMux()
	say := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: f.version}
	say("/apis", metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   []metav1.APIGroup{{Name: group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}},
	})
	say(
		"/openapi/v3",
		map[string]any{
			"paths": map[string]any{strings.TrimPrefix(apis, "/"): map[string]string{"serverRelativeURL": "/openapi/v3" + apis + "?hash=A"}},
		},
	)
	say(
		"/openapi/v3"+apis,
		map[string]any{
			"openapi": "3.0.0",
			"info":    map[string]string{"title": group, "version": "v1"},
			"paths":   map[string]any{apis + "/": map[string]any{}},
		},
	)
	mux.HandleFunc(apis, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(f.delay):
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: gv.String(),
			APIResources: []metav1.APIResource{
				{
					Name:         plural,
					SingularName: strings.TrimSuffix(plural, "es"),
					Kind:         "Thing",
					Namespaced:   true,
					Verbs:        metav1.Verbs{"create", "get", "list", "watch"},
				},
			},
		})
	})
	mux.HandleFunc(apis+"/"+plural, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[]}`, gv)
			return
		}
		w.WriteHeader(http.StatusOK)
		if !f.noBookmark {
			fmt.Fprintf(
				w,
				`{"type":"BOOKMARK","object":{"kind":"Thing","apiVersion":%q,"metadata":{"resourceVersion":"1",`+
					`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n",
				gv,
			)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	return mux
}

// doctor is the verb of the tool, as an administrator of the cluster.
type doctor struct {
	k       *kubectl
	program string
}

func newDoctor(t *testing.T) *doctor {
	t.Helper()
	d := &doctor{k: newKubectl(t, host.Admin()), program: filepath.Join(bin, "annex")}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, ".")
	cmd.Dir = "../../cmd/annex"
	cmd.Env = append(os.Environ(), "GOWORK=", "PWD=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return d
}

// run returns the output of the verb, and its exit code.
func (d *doctor) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	stdout, stderr, code := d.output(t, args...)
	return stdout + stderr, code
}

func (d *doctor) output(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errors bytes.Buffer
	cmd := exec.CommandContext(ctx, d.program, append([]string{"doctor", "--kubeconfig", d.k.kubeconfig}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errors
	err := cmd.Run()
	if exit, ended := err.(*exec.ExitError); err != nil && (!ended || exit.ExitCode() < 0) {
		t.Fatalf("annex doctor: %v\n%s", err, errors.String())
	}
	return out.String(), errors.String(), cmd.ProcessState.ExitCode()
}

type finding struct{ Link, State, Reason, Message, Repair, Cause string }

func (d *doctor) findings(t *testing.T, args ...string) ([]finding, int) {
	t.Helper()
	stdout, stderr, code := d.output(t, append(args, "--output", "json")...)
	var result struct {
		APIServices []struct{ Findings []finding }
	}
	if err := json.Unmarshal([]byte(stdout), &result); err != nil || len(result.APIServices) != 1 {
		t.Fatalf("annex doctor: %v\n%s%s", err, stdout, stderr)
	}
	return result.APIServices[0].Findings, code
}

// finds waits until the verb names exactly these broken links. The cluster collects lists of resources and OpenAPI at
// times of its own.
func (d *doctor) finds(t *testing.T, name string, reasons []string, args ...string) {
	t.Helper()
	testwait.NoError(t, "annex doctor finds "+strings.Join(reasons, ", "), func(context.Context) error {
		found, code := d.findings(t, append(args, "--all", name)...)
		var broken []string
		for _, f := range found {
			if f.State == "broken" {
				broken = append(broken, f.Reason)
			}
		}
		if want := min(len(reasons), 1); !slices.Equal(broken, reasons) || code != want {
			return fmt.Errorf("exit code %d, broken %v: %+v", code, broken, found)
		}
		return nil
	})
	if len(reasons) > 0 && len(args) == 0 {
		if first := d.first(t, name); first != reasons[len(reasons)-1] { // its consequences come before
			t.Errorf("without --all: %q", first)
		}
	}
	if out, _ := d.run(t, append(args, name)...); testing.Verbose() {
		t.Log("\n" + out)
	}
}

// repair runs the verb's commands for the link to repair first: the lines with the given beginning, in a folder with
// the given file.
func (d *doctor) repair(t *testing.T, name, lines, file string, content []byte) {
	t.Helper()
	found, _ := d.findings(t, name)
	var script []string
	for _, f := range found {
		for line := range strings.Lines(f.Repair) {
			if f.State == "broken" && strings.HasPrefix(line, lines) {
				script = append(script, line)
			}
		}
	}
	d.k.file(file, string(content))
	cmd := exec.CommandContext(ending(t), "bash", "-ec", strings.Join(script, ""))
	cmd.Dir = d.k.dir
	cmd.Env = []string{"HOME=" + d.k.dir, "KUBECONFIG=" + d.k.kubeconfig, "PATH=" + bin + ":" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil || len(script) == 0 {
		t.Errorf("%v: %v\n%s", script, err, out)
	}
}

// first returns the reason of the link to repair first.
func (d *doctor) first(t *testing.T, name string, args ...string) string {
	t.Helper()
	found, _ := d.findings(t, append(args, name)...)
	i := slices.IndexFunc(found, func(f finding) bool { return f.State == "broken" })
	if i < 0 {
		return ""
	}
	if cause := found[i].Cause; cause != "" {
		i = slices.IndexFunc(found, func(f finding) bool { return f.Link == cause })
	}
	return found[i].Reason
}
