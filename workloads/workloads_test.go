package workloads_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/workloads"
)

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := flags.Set("stderrthreshold", "FATAL"); err != nil {
		panic(err)
	}
	if err := flags.Set("logtostderr", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func define(options workloads.Options) annex.Server {
	return annex.Server{Name: "test", ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New(options)})}
}

func start(t *testing.T) (*kubernetes.Clientset, *rest.Config) {
	t.Helper()
	config := annextest.Start(t, define(workloads.Options{}))
	return kubernetes.NewForConfigOrDie(config), config
}

var labels = map[string]string{"app": "a"}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}
}

// The golden file has the resources, verbs, kinds, short names and categories of a kube-apiserver of the linked release.
func TestDiscovery_likeKubeAPIServer(t *testing.T) {
	client, _ := start(t)
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, l := range lists {
		for _, r := range l.APIResources {
			line := fmt.Sprintf("%s %s %s namespaced=%t", l.GroupVersion, r.Name, r.Kind, r.Namespaced)
			for _, names := range [][]string{r.Verbs, r.ShortNames, r.Categories} {
				line += " " + strings.Join(names, ",")
			}
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/resources.txt"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("resources differ from %s; UPDATE=1 writes it anew:\n%s", golden, got)
	}
}

// Clients look for kinds in this order, which is that of a kube-apiserver of the linked release.
func TestDiscovery_groups_haveTheOrderOfAKubeAPIServer(t *testing.T) {
	client, _ := start(t)
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups.Groups {
		got = append(got, g.Name+"/"+g.PreferredVersion.Version)
	}
	want := []string{
		"/v1", "apiregistration.k8s.io/v1", "apps/v1", "events.k8s.io/v1", "authentication.k8s.io/v1", "authorization.k8s.io/v1",
		"autoscaling/v2", "batch/v1", "certificates.k8s.io/v1", "networking.k8s.io/v1", "policy/v1", "rbac.authorization.k8s.io/v1",
		"storage.k8s.io/v1", "admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "scheduling.k8s.io/v1",
		"coordination.k8s.io/v1", "node.k8s.io/v1", "discovery.k8s.io/v1", "resource.k8s.io/v1", "flowcontrol.apiserver.k8s.io/v1",
		"storagemigration.k8s.io/v1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("groups:\n%q, want\n%q", got, want)
	}
	var service struct {
		Spec struct{ GroupPriorityMinimum, VersionPriority int }
	}
	raw, err := client.RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1.apps").DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(raw, &service)
	}
	if err != nil || service.Spec.GroupPriorityMinimum != 17800 || service.Spec.VersionPriority != 15 {
		t.Errorf("APIService v1.apps: %v, %+v", err, service)
	}
}

func TestDeployment_defaultsAndRules(t *testing.T) {
	client, _ := start(t)
	all := client.AppsV1().Deployments("default")
	made, err := all.Create(t.Context(), deployment("d"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Spec.Strategy.Type; got != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("strategy %q, want the default", got)
	}
	if made.Generation != 1 {
		t.Errorf("generation %d, want 1", made.Generation)
	}
	scale, err := all.GetScale(t.Context(), "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 3
	if _, err := all.UpdateScale(t.Context(), "d", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	patched, err := all.Patch(t.Context(), "d", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"j"}]}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := patched.Spec.Template.Spec.Containers
	if *patched.Spec.Replicas != 3 || len(c) != 1 || c[0].Image != "j" || patched.Generation != 3 {
		t.Errorf("patched %+v of generation %d", patched.Spec, patched.Generation)
	}
	applied, err := all.Apply(t.Context(), appsapply.Deployment("d", "default").WithSpec(appsapply.DeploymentSpec().WithReplicas(5)),
		metav1.ApplyOptions{FieldManager: "m", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if *applied.Spec.Replicas != 5 {
		t.Errorf("%d replicas applied", *applied.Spec.Replicas)
	}
	patched.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "b"}}
	patched.ResourceVersion = ""
	_, err = all.Update(t.Context(), patched, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("change of the selector: %v", err)
	}
	applied.Spec.Template.Labels = nil
	other := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: applied.Spec}
	if _, err := all.Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("create with a selector that does not match: %v", err)
	}
}

func TestPod_subresources(t *testing.T) {
	client, _ := start(t)
	ctx, all := t.Context(), client.CoreV1().Pods("default")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: labels}, Spec: podSpec()}
	made, err := all.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := made.Spec
	if made.Status.Phase != corev1.PodPending || spec.ServiceAccountName != "default" || *spec.Priority != 0 || len(spec.Tolerations) != 2 {
		t.Errorf("created %+v, want the defaults of all admission plugins", made)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := all.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for selector, want := range map[string]int{"spec.nodeName=n": 1, "spec.nodeName=": 0, "status.phase=Pending": 1} {
		pods, err := all.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(pods.Items) != want {
			t.Errorf("%d pods with %s, want %d: %v", len(pods.Items), selector, want, err)
		}
	}
	if _, err := all.GetLogs("p", &corev1.PodLogOptions{}).DoRaw(ctx); err == nil {
		t.Error("logs of a pod that does not run")
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	if _, err := client.PolicyV1().PodDisruptionBudgets("default").Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running, err := all.Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running.Status.Phase = corev1.PodRunning
	running.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := all.UpdateStatus(ctx, running, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	once := client.CoreV1().RESTClient().Post().MaxRetries(0).
		Namespace("default").Resource("pods").Name("p").SubResource("eviction").Body(eviction)
	if err := once.Do(ctx).Error(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("eviction against a budget that no controller has computed: %v", err)
	}
	if err := client.PolicyV1().PodDisruptionBudgets("default").Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := all.EvictV1(ctx, eviction); err != nil {
		t.Error(err)
	}
}

func TestService_addressesSurviveRestart(t *testing.T) {
	options := annex.Options{DataDir: t.TempDir(), Storage: embedded.Dir("")}
	service := func(name string, port int32) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: port}},
		}}
	}
	var first *corev1.Service
	t.Run("first", func(t *testing.T) {
		client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), options))
		var err error
		if first, err = client.CoreV1().Services("default").Create(t.Context(), service("s", 30001), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(first.Spec.ClusterIP, "10.0.0.") {
			t.Errorf("address %q, want one of 10.0.0.0/24", first.Spec.ClusterIP)
		}
		itself, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || itself.Spec.ClusterIP != "10.0.0.1" {
			t.Errorf("the server's own Service is %v, %v", itself, err)
		}
	})
	t.Run("second", func(t *testing.T) {
		client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), options))
		services := client.CoreV1().Services("default")
		if _, err := services.Create(t.Context(), service("taken", 30001), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("create with a node port of another Service: %v", err)
		}
		taken := service("taken", 0)
		taken.Spec.ClusterIP = first.Spec.ClusterIP
		if _, err := services.Create(t.Context(), taken, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("create with an address of another Service: %v", err)
		}
		if err := services.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Create(t.Context(), service("free", 30001), metav1.CreateOptions{}); err != nil {
			t.Errorf("create with a node port that is free again: %v", err)
		}
	})
}

func TestNamespace_deletionDeletesPods(t *testing.T) {
	client, _ := start(t)
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AppsV1().Deployments("a").Create(ctx, deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// StorageObjectInUseProtection adds a finalizer, which a controller removes.
	if _, err := client.CoreV1().PersistentVolumeClaims("a").Create(ctx, claim("c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		options := metav1.ListOptions{FieldSelector: "metadata.name=a", TimeoutSeconds: new(int64(1))}
		watched, err := client.CoreV1().Namespaces().Watch(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		<-watched.ResultChan()
		watched.Stop()
	}
}

func TestController_namespaceControllerOffKeepsNamespaces(t *testing.T) {
	options := annex.Options{Storage: memory.Storage(), Controllers: []string{}}
	options.Admission.DisablePlugins = []string{"ServiceAccount"}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), options))
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	if _, err := client.CoreV1().Pods("a").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("a pod without service accounts: %v", err)
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("%v, %v, want a namespace that is Terminating", ns, err)
	}
	if _, err := client.CoreV1().Pods("a").Get(ctx, "p", metav1.GetOptions{}); err != nil {
		t.Errorf("a pod in it: %v", err)
	}
}

func TestRights_ofAWeakAccount(t *testing.T) {
	client, config := start(t)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "amy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "amy"}},
	}
	if _, err := client.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	weak := rest.CopyConfig(config)
	weak.Impersonate = rest.ImpersonationConfig{UserName: "amy"}
	amy := kubernetes.NewForConfigOrDie(weak)
	if _, err := amy.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a viewer lists pods: %v", err)
	}
	if _, err := amy.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a viewer lists deployments: %v", err)
	}
	for name, err := range map[string]error{
		"create": func() error {
			_, err := amy.AppsV1().Deployments("default").Create(t.Context(), deployment("d"), metav1.CreateOptions{})
			return err
		}(),
		"list of nodes": func() error {
			_, err := amy.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		}(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", name, err)
		}
	}
}

func TestNew_mistakes(t *testing.T) {
	for want, options := range map[string]workloads.Options{
		"ServiceIPRanges":  {ServiceIPRanges: []string{"10.0.0.0"}},
		"ServiceNodePorts": {ServiceNodePorts: "1-x"},
	} {
		_, err := annex.New(t.Context(), define(options), annex.Options{Storage: memory.Storage()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about %s", options, err, want)
		}
	}
}

func TestRuntimeConfig_turnsKindsOnAndOff(t *testing.T) {
	with := func(config map[string]bool) annex.Options {
		return annex.Options{Storage: memory.Storage(), ControlPlane: annex.ControlPlaneOptions{RuntimeConfig: config}}
	}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, define(workloads.Options{}), with(map[string]bool{
		"batch/v1": false, "apps/v1/daemonsets": false, "api/v1/nodes": false, "resource.k8s.io/v1beta2": true,
	})))
	for group, want := range map[string]string{
		"v1": "pods -nodes", "apps/v1": "deployments -daemonsets", "batch/v1": "", "resource.k8s.io/v1beta2": "resourceclaims",
	} {
		served := map[string]bool{}
		list, err := client.Discovery().ServerResourcesForGroupVersion(group)
		if err != nil {
			if want != "" {
				t.Errorf("%s: %v", group, err)
			}
			continue
		}
		for _, r := range list.APIResources {
			served[r.Name] = true
		}
		for _, name := range strings.Fields(want) {
			if off := strings.TrimPrefix(name, "-"); served[off] == (off != name) {
				t.Errorf("%s of %s: served is %t", off, group, served[off])
			}
		}
		if want == "" && len(served) > 0 {
			t.Errorf("%s is served: %v", group, served)
		}
	}
	_, err := annex.New(t.Context(), define(workloads.Options{}), with(map[string]bool{"apps/v7": true}))
	if err == nil || !strings.Contains(err.Error(), "apps/v7") {
		t.Errorf("a version that does not exist: %v", err)
	}
}

// The extension's storages open after the check of stored objects.
func TestRestart_storedObjects_onlyLostKindsAreLogged(t *testing.T) {
	const snapshot = `{"annexSnapshot":1,"revision":14,"objects":4}
{"key":"/apps/deployments/default/web","revision":11,"value":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"}}}
{"key":"/apps/gadgets/default/lost","revision":12,"value":{"apiVersion":"apps/v1","kind":"Gadget"}}
{"key":"/pods/default/a","revision":13,"value":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default"}}}
{"key":"/scheduling.k8s.io/priorityclasses/high","revision":14,"value":{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"high"}}}
`
	objects, err := memory.Read(strings.NewReader(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	defer cancel()
	server, err := annex.New(ctx, define(workloads.Options{}), annex.Options{Storage: objects, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	logged := log.String() // of New alone: the running server logs concurrently
	if err := server.Run(ctx, cancel); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(logged, "does not serve"); got != 1 || !strings.Contains(logged, `under="/apps/gadgets" objects=1`) {
		t.Errorf("the log has %d lines about kinds that are not served; want one about /apps/gadgets:\n%s", got, logged)
	}
}
