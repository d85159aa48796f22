package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/store/memory"
)

// fronts returns the real server and a server with a control plane, by name. Ours collects no garbage: the collector
// would at once watch the resources of servers behind it, and the stock server does not end while it is watched.
func fronts(t *testing.T) map[string]*rest.Config {
	t.Helper()
	options := annex.Options{Storage: memory.Storage(), Controllers: []string{"*", "-garbage-collector-controller"}}
	return map[string]*rest.Config{
		"kube":  host.Admin(),
		"annex": annextest.StartWith(t, annex.Server{Name: "plane", ControlPlane: controlplane.New(controlplane.Options{})}, options),
	}
}

// outside creates a namespace with a Service that leads to this machine.
func outside(t *testing.T, front *rest.Config, namespace string) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(front).CoreV1()
	if _, err := client.Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "behind"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}
	if _, err := client.Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// registered creates an APIService, and returns its condition once it has that status.
func registered(
	t *testing.T,
	front *rest.Config,
	s apiregistrationv1.APIServiceSpec,
	status apiregistrationv1.ConditionStatus,
) apiregistrationv1.APIServiceCondition {
	t.Helper()
	services := aggregator.NewForConfigOrDie(front).ApiregistrationV1().APIServices()
	s.GroupPriorityMinimum, s.VersionPriority = 1000, 15
	name := s.Version + "." + s.Group
	if _, err := services.Create(
		t.Context(),
		&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s},
		metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	var found apiregistrationv1.APIServiceCondition
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		current, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(current.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool { return c.Status == status })
		if i >= 0 {
			found = current.Status.Conditions[i]
		}
		return i >= 0, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return found
}

func TestAPIServices_unreachable_sameConditions(t *testing.T) {
	const namespace = "nowhere"
	all := fronts(t)
	for _, front := range all {
		outside(t, front, namespace)
	}
	authority, err := kube.NewAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	// A server listens there, of another authority and another name.
	at, err := url.Parse(host.Admin().Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(at.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	ports := regexp.MustCompile(`127\.0\.0\.1:\d+(->127\.0\.0\.1:\d+)?`)
	for name, spec := range map[string]apiregistrationv1.APIServiceSpec{
		"no service":   {Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "missing"}},
		"no namespace": {Service: &apiregistrationv1.ServiceReference{Namespace: "missing", Name: "missing"}},
		"a closed port": {Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "behind", Port: new(int32(1))},
			InsecureSkipTLSVerify: true},
		"a wrong bundle": {Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "behind", Port: new(int32(port))},
			CABundle: authority.PEM()},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Group, spec.Version = strings.ReplaceAll(name, " ", "-")+".example.com", "v1"
			said := map[string]string{}
			for at, front := range all {
				c := registered(t, front, spec, apiregistrationv1.ConditionFalse)
				said[at] = c.Reason + ": " + ports.ReplaceAllString(c.Message, "127.0.0.1:PORT")
				// The group is listed, but not usable.
				err := kubernetes.NewForConfigOrDie(front).
					Discovery().
					RESTClient().
					Get().
					AbsPath("/apis", spec.Group, spec.Version, "things").
					Do(t.Context()).
					Error()
				said[at] += fmt.Sprintf("\n%v: %v", apierrors.ReasonForError(err), err)
			}
			if said["annex"] != said["kube"] {
				t.Errorf("it says\n%s\nand kube-apiserver\n%s", said["annex"], said["kube"])
			}
		})
	}
}

// kube-apiserver has groups that a control plane lacks.
func TestGroups_order(t *testing.T) {
	listed := map[string][]string{}
	for at, front := range fronts(t) {
		remote := apiregistrationv1.APIServiceSpec{
			Group:   "order.example.com",
			Version: "v1",
			Service: &apiregistrationv1.ServiceReference{Namespace: "missing", Name: "missing"},
		}
		registered(t, front, remote, apiregistrationv1.ConditionFalse)
		body, err := kubernetes.NewForConfigOrDie(front).
			Discovery().
			RESTClient().
			Get().
			AbsPath("/apis").
			SetHeader("Accept", "application/json").
			DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var list map[string]any
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatal(err)
		}
		groups, _ := list["groups"].([]any)
		delete(list, "groups")
		listed[at] = []string{fmt.Sprint(list)}
		for _, g := range groups {
			listed[at] = append(listed[at], fmt.Sprint(g))
		}
	}
	listed["kube"] = slices.DeleteFunc(listed["kube"], func(g string) bool { return !slices.Contains(listed["annex"], g) })
	if !slices.Equal(listed["annex"], listed["kube"]) {
		t.Errorf("it lists\n%s\nand of these kube-apiserver\n%s", strings.Join(listed["annex"], "\n"), strings.Join(listed["kube"], "\n"))
	}
}

func TestAggregation_stockSampleServer(t *testing.T) {
	const namespace = "stock"
	version := schema.GroupVersion{Group: "wardle.example.com", Version: "v1alpha1"}
	explained := map[string]map[string]string{}
	for at, front := range fronts(t) {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			kubeconfig := filepath.Join(dir, "kubeconfig")
			if err := kube.WriteKubeconfig(kubeconfig, front); err != nil {
				t.Fatal(err)
			}
			sample, err := kube.Run(t.Context(), dir, kube.Program{
				Name: "sample-apiserver", Path: filepath.Join("../../../bin", "sample-apiserver"), Ports: 1,
				Args: func(ports []int) []string {
					return []string{
						"--etcd-servers", host.Etcd.Endpoint(), "--etcd-prefix", "/stock/" + at, "--secure-port", fmt.Sprint(ports[0]), "--cert-dir", dir,
						"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := sample.Stop(); err != nil {
					t.Error(err)
				}
			})
			outside(t, front, namespace)
			condition := registered(t, front, apiregistrationv1.APIServiceSpec{
				Group: version.Group, Version: version.Version, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "behind", Port: new(int32(sample.Port(0)))},
			}, apiregistrationv1.ConditionTrue)
			if condition.Reason != "Passed" || condition.Message != "all checks passed" {
				t.Errorf("%+v", condition)
			}
			flunders := dynamic.NewForConfigOrDie(front).Resource(version.WithResource("flunders")).Namespace(namespace)
			watching, err := flunders.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer watching.Stop()
			applied := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": version.String(), "kind": "Flunder", "metadata": map[string]any{"name": "f"}, "spec": map[string]any{"reference": "x"},
			}}
			if _, err := flunders.Apply(t.Context(), "f", applied, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
				t.Fatal(err)
			}
			if e := <-watching.ResultChan(); e.Type != "ADDED" {
				t.Errorf("the watch tells of %v", e)
			}
			explained[at] = explain(t, kubeconfig, "flunders.spec.reference", "--recursive", "flunders")
			jane := rest.CopyConfig(front)
			jane.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
			_, err = dynamic.NewForConfigOrDie(jane).
				Resource(version.WithResource("flunders")).
				Namespace(namespace).
				List(t.Context(), metav1.ListOptions{})
			want := `flunders.wardle.example.com is forbidden: User "jane" cannot list resource "flunders" in API group "wardle.example.com" in ` +
				`the namespace "stock"`
			if err == nil || err.Error() != want {
				t.Errorf("of jane: %v", err)
			}
		})
	}
	for what, theirs := range explained["kube"] {
		if ours := explained["annex"][what]; ours != theirs {
			t.Errorf("%s prints\n%s\nand of kube-apiserver\n%s", what, ours, theirs)
		}
	}
}

// explain returns kubectl's explanation of a kind from each version of OpenAPI, once kubectl knows the kind.
func explain(t *testing.T, kubeconfig string, field string, arguments ...string) map[string]string {
	t.Helper()
	printed := map[string]string{}
	for _, output := range []string{"plaintext", "plaintext-openapiv2"} {
		for _, asked := range [][]string{{field}, arguments} {
			command := append(
				[]string{"--kubeconfig", kubeconfig, "explain", "--output", output, "--api-version", "wardle.example.com/v1alpha1"},
				asked...)
			err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
				out, err := exec.CommandContext(ctx, filepath.Join("../../../bin", "kubectl"), command...).CombinedOutput()
				printed[output+" "+strings.Join(asked, " ")] = string(out)
				return err == nil && strings.Contains(string(out), "wardle.example.com"), nil
			})
			if err != nil {
				t.Fatalf("%v: %v, %s", command, err, printed[output+" "+strings.Join(asked, " ")])
			}
		}
	}
	return printed
}
