package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/server/streams/streamtest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const cicdGroup = "autobusi.group.cicd"

var jenkinsservices = schema.GroupVersionResource{Group: cicdGroup, Version: "v1alpha", Resource: "jenkinsservices"}

// TestCICD runs two replicas of the sample above one etcd, one of them registered, with the permissions of its
// manifests. At first its controller is in processes of its own.
func TestCICD(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	// At first the controllers are separate; later one of the replicas runs them.
	admin.given(permissions(t, "cicd", "--separate-controllers"), "apply", "-f", "-")
	admin.given(permissions(t, "cicd"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "cicd", "cicd")
	if err != nil {
		t.Fatal(err)
	}
	controllers, err := host.ServiceAccount(ending(t), "cicd", "cicd-controllers")
	if err != nil {
		t.Fatal(err)
	}
	etcd := startEtcd(t)
	one := startCICD(t, "cicd-1", account, etcd, "--controllers=")
	other := startCICD(t, "cicd-2", account, etcd, "--controllers=")
	one.register(t, jenkinsservices.GroupVersion())

	ns := namespace(t)
	t.Run("OnlyTheSubresourceApproves", func(t *testing.T) { approvals(t, ns) })
	t.Run("ControllersElectALeader", func(t *testing.T) { leaders(t, ns, controllers) })
	t.Run("TheQuotaHoldsAcrossReplicas", func(t *testing.T) { tenServices(t, ns, other) })
	t.Run("ANamespaceWaitsForItsInstances", func(t *testing.T) {
		startCICD(t, "cicd-3", account, etcd, "--controllers=*")
		drained(t, ns)
	})
}

// Instances are processes of the server, and the cluster connects clients with them.
func TestCICD_exec_throughCluster(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	admin.given(permissions(t, "cicd"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "cicd", "cicd")
	if err != nil {
		t.Fatal(err)
	}
	startJoined(t, "cicd", "cicd-instances", account, "--storage", "memory").register(t, jenkinsservices.GroupVersion())
	ns := namespace(t)
	admin.given(jenkinsServiceFile(t, "ci", 2), "-n", ns, "apply", "-f", "-")
	admin.given(`{"decision":"Approved"}`, "create", "--raw", approvalPath(ns), "-f", "-")
	running(t, ns, "2/2")

	target := streamtest.Target{Config: host.Admin(), Path: strings.TrimSuffix(approvalPath(ns), "/approval")}
	target.Commands(t, 1<<20)
	t.Run("a terminal", target.Terminal)
	t.Run("a log that is followed", func(t *testing.T) {
		client, err := rest.HTTPClientFor(target.Config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(
			ending(t),
			http.MethodGet,
			target.Config.Host+target.Path+"/logs?follow=true&container=1",
			nil,
		)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		if !lines.Scan() || !strings.Contains(lines.Text(), "instance 1 of ci starts") {
			t.Fatalf("%s: the log begins with %q, %v", response.Status, lines.Text(), lines.Err())
		}
		// One line a second: all lines after the first few are written while the log is read.
		for n := 1; n <= 5; n++ {
			if want := fmt.Sprintf("build %d is done", n); !lines.Scan() || lines.Text() != want {
				t.Fatalf("got %q, %v; want %q", lines.Text(), lines.Err(), want)
			}
		}
	})

	target.Config = user(t, "spectator")
	admin.must(
		"create",
		"clusterrole",
		"spectators",
		"--verb=get",
		"--resource=jenkinsservices."+cicdGroup+",jenkinsservices."+cicdGroup+"/exec",
	)
	admin.must("create", "clusterrolebinding", "spectators", "--clusterrole=spectators", "--user=spectator")
	target.Refused(t, func(err error) bool {
		return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), `cannot create resource "jenkinsservices/exec"`)
	})
}

// permissions returns the parts of a program's manifests that grant permissions.
func permissions(t *testing.T, program string, flags ...string) string {
	t.Helper()
	var parts []string
	args := append([]string{"manifests", "--image", "registry.example.com/" + program + ":v1"}, flags...)
	for document := range strings.SplitSeq(runs(t, filepath.Join(bin, program), args...), "\n---\n") {
		var object metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Lease":
			parts = append(parts, document)
		}
	}
	return strings.Join(parts, "\n---\n")
}

// joined is a server that has joined the cluster, in the namespace of its name.
type joined struct {
	*kube.Process
	program string
	serving *kube.Authority
}

func startCICD(t *testing.T, name string, account *rest.Config, etcd *kube.Etcd, flags ...string) *joined {
	t.Helper()
	return startJoined(t, "cicd", name, account, append([]string{"--storage", "etcd", "--etcd-servers", etcd.Endpoint()}, flags...)...)
}

// startJoined runs a program of bin that joins the cluster, until the test is over.
func startJoined(t *testing.T, program, name string, account *rest.Config, flags ...string) *joined {
	t.Helper()
	serving, err := kube.NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := serving.Server(program+"."+program+".svc", "localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(run, name)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(run, name+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, account); err != nil {
		t.Fatal(err)
	}
	c := &joined{program: program, serving: serving}
	c.Process, err = kube.Run(ending(t), run, kube.Program{
		Name: name, Path: filepath.Join(bin, program), Ports: 1,
		Args: func(ports []int) []string {
			return append([]string{
				"serve",
				"--aggregated",
				"--data-dir",
				filepath.Join(run, name),
				"--kubeconfig",
				kubeconfig,
				"--bind-address",
				"127.0.0.1",
				"--secure-port",
				fmt.Sprint(ports[0]),
				"--tls-cert-file",
				cert,
				"--tls-private-key-file",
				key,
			}, flags...)
		},
		Ready: func(ctx context.Context, ports []int) error {
			return ready(ctx, &rest.Config{
				Host: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), TLSClientConfig: rest.TLSClientConfig{CAData: serving.PEM()},
			})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(c.Tail(), "panic") {
			t.Errorf("%s panicked:\n%s", name, c.Tail())
		}
	})
	return c
}

func ready(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s", response.Status)
	}
	return nil
}

// register directs a group of the cluster to the server, until the test is over.
func (c *joined) register(t *testing.T, gv schema.GroupVersion) {
	t.Helper()
	port, name := int32(c.Port(0)), gv.Version+"."+gv.Group
	if err := host.Register(ending(t), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 1000, VersionPriority: 15,
			Service:  &apiregistrationv1.ServiceReference{Namespace: c.program, Name: c.program, Port: &port},
			CABundle: c.serving.PEM(),
		},
	}); err != nil {
		t.Fatalf("%v\n%s", err, c.Tail())
	}
	t.Cleanup(func() {
		if err := host.Unregister(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
}

func jenkinsService(name string, amount int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": cicdGroup + "/v1alpha", "kind": "JenkinsService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"instanceamount": amount, "instancecpu": int64(2)},
	}}
}

func jenkinsServiceFile(t *testing.T, name string, amount int64) string {
	t.Helper()
	text, err := yaml.Marshal(jenkinsService(name, amount).Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func approvalPath(ns string) string {
	return "/apis/" + cicdGroup + "/v1alpha/namespaces/" + ns + "/jenkinsservices/ci/approval"
}

// approvals needs roles: one user may ask, another may approve, and neither may do both.
func approvals(t *testing.T, ns string) {
	admin := newKubectl(t, host.Admin())
	const resource = "jenkinsservices." + cicdGroup
	for role, rules := range map[string][]string{
		"asker":    {"--verb=create,get,list,watch,update,patch,delete", "--resource=" + resource},
		"approver": {"--verb=create", "--resource=" + resource + "/approval"},
	} {
		admin.must(append([]string{"create", "role", role, "-n", ns}, rules...)...)
		admin.must("create", "rolebinding", role, "-n", ns, "--role="+role, "--user="+role)
	}
	asker, approver, nobody := newKubectl(t, user(t, "asker")), newKubectl(t, user(t, "approver")), newKubectl(t, user(t, "nobody"))
	testwait.NoError(t, "the role applies", func(context.Context) error {
		out, err := asker.run("", "-n", ns, "get", "js")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	asker.given(jenkinsServiceFile(t, "ci", 3), "-n", ns, "apply", "-f", "-")

	const approved = `{"decision":"Approved"}`
	approve := []string{"create", "--raw", approvalPath(ns), "-f", "-"}
	const cannot = `cannot create resource "jenkinsservices/approval" in API group "autobusi.group.cicd"`
	asker.refused(approved, `User "asker" `+cannot, approve...)
	nobody.refused(approved, `User "nobody" `+cannot, approve...)
	asker.must(
		"-n",
		ns,
		"patch",
		"js",
		"ci",
		"--type=merge",
		"-p",
		`{"metadata":{"labels":{"a":"b"}},"status":{"approvalstatus":"Approved"}}`,
	)
	asker.refused(
		"",
		`cannot get resource "jenkinsservices/status"`,
		"-n",
		ns,
		"patch",
		"js",
		"ci",
		"--subresource=status",
		"--type=merge",
		"-p",
		`{"status":{"approvalstatus":"Approved"}}`,
	)
	admin.refused(
		"",
		"status.approvalstatus is decided at the subresource approval",
		"-n",
		ns,
		"patch",
		"js",
		"ci",
		"--subresource=status",
		"--type=merge",
		"-p",
		`{"status":{"approvalstatus":"Approved"}}`,
	)
	asker.prints("Pending", "-n", ns, "get", "js")

	approver.refused("", `User "approver" cannot list resource "jenkinsservices"`, "-n", ns, "get", "js")
	approver.refused(`{"decision":"Perhaps"}`, `decision: Unsupported value: "Perhaps"`, approve...)
	testwait.NoError(t, "the approver's role applies", func(context.Context) error {
		out, err := approver.run(approved, approve...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	approver.refused(`{"decision":"Rejected"}`, "it is Approved, and that stands until its spec changes", approve...)
	asker.prints("Approved", "-n", ns, "get", "js")
}

// leaders starts two controllers. When the first, which leads, is killed, the second takes over once the Lease has
// expired.
func leaders(t *testing.T, ns string, account *rest.Config) {
	admin := newKubectl(t, host.Admin())
	first := startControllers(t, "cicd-controllers-1", account)
	running(t, ns, "3/3")
	leader := admin.must("-n", "cicd", "get", "lease", "cicd-controllers", "-o", "jsonpath={.spec.holderIdentity}")
	startControllers(t, "cicd-controllers-2", account)

	first.Kill()
	admin.must("-n", ns, "patch", "js", "ci", "--type=merge", "-p", `{"spec":{"instanceamount":5}}`)
	admin.given(`{"decision":"Approved"}`, "create", "--raw", approvalPath(ns), "-f", "-")
	running(t, ns, "5/5")
	if now := admin.must(
		"-n",
		"cicd",
		"get",
		"lease",
		"cicd-controllers",
		"-o",
		"jsonpath={.spec.holderIdentity}",
	); now == leader ||
		leader == "" {
		t.Errorf("%q led, and then %q", leader, now)
	}
}

// running waits until so many instances of the service run.
func running(t *testing.T, ns, instances string) {
	t.Helper()
	admin := newKubectl(t, host.Admin())
	testwait.NoError(t, instances+" instances run", func(context.Context) error {
		if out := admin.must("-n", ns, "get", "js", "ci"); !strings.Contains(out, instances) {
			return errors.New(out)
		}
		return nil
	})
}

// startControllers runs the controller as the service account does in a pod. It ends with the calling test.
func startControllers(t *testing.T, name string, account *rest.Config) *kube.Process {
	t.Helper()
	kubeconfig := filepath.Join(run, name+".kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, account); err != nil {
		t.Fatal(err)
	}
	p, err := kube.Run(ending(t), run, kube.Program{
		Name: name, Path: filepath.Join(bin, "cicd"),
		Args: func([]int) []string {
			return []string{"controllers", "--kubeconfig", kubeconfig, "--leader-elect-resource-namespace", "cicd",
				"--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s", "--leader-elect-retry-period", "500ms"}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// tenServices creates through the cluster at one replica, and directly at the other.
func tenServices(t *testing.T, ns string, other *joined) {
	direct := host.Admin()
	direct.Host, direct.CAData = fmt.Sprintf("https://127.0.0.1:%d", other.Port(0)), other.serving.PEM()
	var clients []dynamic.ResourceInterface
	for _, config := range []*rest.Config{host.Admin(), direct} {
		config.QPS = -1
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client.Resource(jenkinsservices).Namespace(ns))
	}
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			_, err := clients[i%2].Create(t.Context(), jenkinsService(fmt.Sprint("j", i), 1), metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "at most 10 JenkinsServices may exist in the whole server, and "+
				"there are 10"):
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, client := range clients {
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 10 || made.Load() != 9 { // one exists already
			t.Errorf("%d exist, %d were made; want 10 and 9", len(list.Items), made.Load())
		}
	}
}

// drained deletes a namespace in which instances run. The controller is in a replica now, which restarts the
// instances that ended with the controller before.
func drained(t *testing.T, ns string) {
	running(t, ns, "5/5")
	newKubectl(t, host.Admin()).must("delete", "namespace", ns, "--timeout=90s")
}
