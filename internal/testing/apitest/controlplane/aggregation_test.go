package controlplane

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// behind is an Annex server that a control plane aggregates.
type behind struct {
	port int
	// stop stops it, and returns when it has ended.
	stop func()
}

// serveBehind runs a server that delegates authentication and authorization to the control plane of the
// configuration. It listens on 127.0.0.1, at the given port, or at any if that is 0.
func serveBehind(t *testing.T, front *rest.Config, server annex.Server, port int) *behind {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfigOf(front), kubeconfig); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, annex.Options{
		Aggregated: true, Storage: memory.Storage(), DataDir: t.TempDir(),
		Listen: "127.0.0.1:" + strconv.Itoa(port), Cluster: annex.ClusterOptions{Kubeconfig: kubeconfig},
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- instance.Run(ctx, nil) }()
	stopped := false
	b := &behind{stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server behind failed: %v", err)
		}
	}}
	t.Cleanup(b.stop)
	at, err := url.Parse(instance.URL())
	if err != nil {
		t.Fatal(err)
	}
	if b.port, err = strconv.Atoi(at.Port()); err != nil {
		t.Fatal(err)
	}
	return b
}

func kubeconfigOf(c *rest.Config) clientcmdapi.Config {
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData, TLSServerName: c.ServerName}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Token: c.BearerToken}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	k.CurrentContext = "x"
	return *k
}

// register creates a Service and APIServices that lead to a port of this machine.
func register(t *testing.T, front *rest.Config, port int, versions ...schema.GroupVersion) {
	t.Helper()
	named(t, front, "behind")
	for _, v := range versions {
		registerAt(t, front, port, v)
	}
}

// named creates a Service that leads to this machine.
func named(t *testing.T, front *rest.Config, name string) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}
	if _, err := kubernetes.NewForConfigOrDie(front).
		CoreV1().
		Services("default").
		Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func registerAt(t *testing.T, front *rest.Config, port int, v schema.GroupVersion) {
	t.Helper()
	if _, err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Create(t.Context(), remoteService(v, port), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func remoteService(v schema.GroupVersion, port int) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: v.Version + "." + v.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: v.Group, Version: v.Version, GroupPriorityMinimum: 1000, VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "behind", Port: new(int32(port))},
		},
	}
}

// condition waits until the condition Available of the APIService has the given status and reason, with a text in
// its message.
func condition(t *testing.T, front *rest.Config, name string, status apiregistrationv1.ConditionStatus, reason, text string) {
	t.Helper()
	services := aggregator.NewForConfigOrDie(front).ApiregistrationV1().APIServices()
	testwait.NoError(t, "the condition of "+name, func(ctx context.Context) error {
		s, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range s.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status == status && c.Reason == reason && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.Status.Conditions)
	})
	if status == apiregistrationv1.ConditionTrue {
		reached(t, front, name)
	}
}

// reached waits until requests are proxied to the server of an APIService. Proxying begins a moment after the
// condition is written, as in kube-apiserver.
func reached(t *testing.T, front *rest.Config, name string) {
	t.Helper()
	version, group, _ := strings.Cut(name, ".")
	client := kubernetes.NewForConfigOrDie(front).Discovery().RESTClient()
	testwait.NoError(t, "the server of "+name, func(ctx context.Context) error {
		err := client.Get().AbsPath("/apis", group, version).MaxRetries(0).Do(ctx).Error()
		if apierrors.IsServiceUnavailable(err) {
			return err
		}
		return nil
	})
}

// look changes an APIService, so that the server checks it at once instead of within half a minute.
func look(t *testing.T, front *rest.Config, name string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/looked":%q}}}`, rand.Text())
	if _, err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// crateServer has one kind, and nothing of a control plane.
func crateServer() annex.Server {
	return annex.Server{
		Name:   "crates",
		Groups: []annex.Group{{Name: typedGroup, Kinds: []annex.Kind{annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API)}}},
	}
}

var (
	crateVersion  = schema.GroupVersion{Group: typedGroup, Version: "v1"}
	crateResource = crateVersion.WithResource("crates")
)

func crateNamed(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": crateVersion.String(), "kind": "Crate", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"size": "large", "boxes": int64(5), "owner": "jane", "label": "label", "code": "abcdef"},
	}}
}

func TestAggregation_authenticationConfig(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	client := kubernetes.NewForConfigOrDie(front)
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	const name = "extension-apiserver-authentication"
	published := func() *corev1.ConfigMap {
		var m *corev1.ConfigMap
		testwait.NoError(t, name, func(ctx context.Context) error {
			var err error
			if m, err = configMaps.Get(
				ctx,
				name,
				metav1.GetOptions{},
			); err == nil &&
				!strings.Contains(m.Data["requestheader-client-ca-file"], "CERTIFICATE") {
				err = fmt.Errorf("%v", m.Data)
			}
			return err
		})
		return m
	}
	first := published()
	for key, want := range map[string]string{
		"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-uid-headers":   `["X-Remote-Uid"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	} {
		if first.Data[key] != want {
			t.Errorf("%s is %s", key, first.Data[key])
		}
	}
	if first.Data["client-ca-file"] == first.Data["requestheader-client-ca-file"] {
		t.Error("users have the authority of the server, and could say that they are others")
	}
	// Damaged entries are repaired; entries that another replica has added stay.
	damaged := `{"data":{"requestheader-client-ca-file":"x","requestheader-allowed-names":"[\"other\"]"}}`
	if _, err := configMaps.Patch(t.Context(), name, types.MergePatchType, []byte(damaged), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	repaired := published()
	if repaired.Data["requestheader-client-ca-file"] != first.Data["requestheader-client-ca-file"] ||
		repaired.Data["requestheader-allowed-names"] != `["front-proxy-client","other"]` {
		t.Errorf("%v", repaired.Data)
	}
	role, err := client.RbacV1().Roles(metav1.NamespaceSystem).Get(t.Context(), name+"-reader", metav1.GetOptions{})
	if err != nil || len(role.Rules) != 1 || role.Rules[0].ResourceNames[0] != name {
		t.Errorf("%v, %v", role, err)
	}
	if _, err := client.RbacV1().ClusterRoles().Get(t.Context(), "system:auth-delegator", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// It is not parallel, because it listens again on a port that it has released, which another test could get
// meanwhile.
func TestAggregation_proxiesRequests(t *testing.T) {
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	condition(t, front, "v1."+typedGroup, apiregistrationv1.ConditionTrue, "Passed", "all checks passed")

	crates := dynamic.NewForConfigOrDie(front).Resource(crateResource).Namespace("default")
	watching, err := crates.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	if _, err := crates.Create(t.Context(), crateNamed("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-watching.ResultChan(); e.Type != "ADDED" {
		t.Errorf("the watch tells of %v", e)
	}
	patched, err := crates.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"spec":{"boxes":6}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(patched.Object, "spec", "boxes"); n != 6 {
		t.Errorf("it has %d boxes", n)
	}
	// A caller without the permission is forbidden there, too, under the right user name.
	jane := rest.CopyConfig(front)
	jane.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	_, err = dynamic.NewForConfigOrDie(jane).Resource(crateResource).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "jane" cannot list resource "crates"`) {
		t.Errorf("of jane: %v", err)
	}

	// The server stops and comes back.
	b.stop()
	look(t, front, "v1."+typedGroup)
	condition(
		t,
		front,
		"v1."+typedGroup,
		apiregistrationv1.ConditionFalse,
		"FailedDiscoveryCheck",
		"failing or missing response from https://127.0.0.1:"+strconv.Itoa(b.port)+"/apis/"+crateVersion.String(),
	)
	if _, err := crates.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("of a server that is dead: %v", err)
	}
	serveBehind(t, front, crateServer(), b.port)
	look(t, front, "v1."+typedGroup)
	condition(t, front, "v1."+typedGroup, apiregistrationv1.ConditionTrue, "Passed", "")
}

func TestAggregation_discovery(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	const dead = "v1.dead.example.com"
	if _, err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Create(t.Context(), remoteService(schema.GroupVersion{Group: "dead.example.com", Version: "v1"}, 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition(t, front, dead, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", "connection refused")
	client := discovery.NewDiscoveryClientForConfigOrDie(front)
	testwait.NoError(t, "aggregated discovery", func(context.Context) error {
		groups, resources, failed, err := client.GroupsAndMaybeResources()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == typedGroup }) || resources[crateVersion] == nil {
			return fmt.Errorf("%v", groups)
		}
		// The groups of the stopped server are listed, marked as stale.
		if failed[schema.GroupVersion{Group: "dead.example.com", Version: "v1"}] == nil || failed[crateVersion] != nil {
			return fmt.Errorf("failed are %v", failed)
		}
		return nil
	})
	get := func(path string) string {
		t.Helper()
		body, err := client.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(body)
	}
	if list := get(
		"/apis",
	); !strings.Contains(list, `"name":"`+typedGroup+`"`) ||
		!strings.Contains(list, `"name":"rbac.authorization.k8s.io"`) {
		t.Errorf("the list is %s", list)
	}
	if group := get("/apis/" + typedGroup); !strings.Contains(group, `"preferredVersion":{"groupVersion":"`+crateVersion.String()) {
		t.Errorf("the group is %s", group)
	}
	testwait.NoError(t, "OpenAPI v3", func(context.Context) error {
		paths, err := client.OpenAPIV3().Paths()
		if err != nil {
			return err
		}
		if paths["apis/rbac.authorization.k8s.io/v1"] == nil || paths["apis/"+crateVersion.String()] == nil {
			return fmt.Errorf("%v", slices.Collect(maps.Keys(paths)))
		}
		document, err := paths["apis/"+crateVersion.String()].Schema("application/json")
		if err != nil || !strings.Contains(string(document), "Crate") {
			return fmt.Errorf("%s, %w", document, err)
		}
		return nil
	})
	// Groups that no server serves are absent; groups of another server disappear with its APIService.
	services := aggregator.NewForConfigOrDie(front).ApiregistrationV1().APIServices()
	for _, name := range []string{dead, "v1." + typedGroup} {
		if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testwait.NoError(t, "the end of the groups", func(ctx context.Context) error {
		if _, err := client.RESTClient().Get().AbsPath("/apis/" + crateVersion.String()).DoRaw(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%v", err)
		}
		groups, _, failed, err := client.GroupsAndMaybeResources()
		if err != nil || len(failed) > 0 || strings.Contains(fmt.Sprint(groups), typedGroup) || strings.Contains(get("/apis"), typedGroup) {
			return fmt.Errorf("%v, %v, %v", groups, failed, err)
		}
		return nil
	})
}

func TestAggregation_garbage(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	condition(t, front, "v1."+typedGroup, apiregistrationv1.ConditionTrue, "Passed", "")
	client, crates := kubernetes.NewForConfigOrDie(front), dynamic.NewForConfigOrDie(front).Resource(crateResource)
	if _, err := client.CoreV1().
		Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	owner, err := client.CoreV1().
		ConfigMaps("default").
		Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := crateNamed("owned")
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
	for namespace, crate := range map[string]*unstructured.Unstructured{"default": owned, "a": crateNamed("inside")} {
		testwait.NoError(t, "a crate in "+namespace, func(ctx context.Context) error {
			_, err := crates.Namespace(namespace).Create(ctx, crate, metav1.CreateOptions{})
			return err
		})
	}
	if err := client.CoreV1().ConfigMaps("default").Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the end of both", func(ctx context.Context) error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace: %v", err)
		}
		left, err := crates.List(ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%v, %w", left, err)
		}
		return nil
	})
}
