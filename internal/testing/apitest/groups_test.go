package apitest_test

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/model/facts/core"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

// fakeCluster adds Kubernetes' kinds to the core group, and serves widgets there and in a group without a domain,
// too.
func fakeCluster() annex.Server {
	same := func() *annex.VersionBuilder[v1.Widget, v1.Widget] {
		return annex.SameVersion[v1.Widget, v1.Widget]("v1")
	}
	return annex.Server{Name: "shop", Groups: []annex.Group{
		{Name: "", Kinds: []annex.Kind{
			annex.KindOf[corev1.Node, corev1.NodeList]("nodes", core.API).ClusterScoped().ShortNames("no"),
			annex.KindOf[corev1.Pod, corev1.PodList]("pods", core.API).DefaultRoles().
				SelectableField("spec.nodeName", func(p *corev1.Pod) string { return p.Spec.NodeName }),
		}},
		{Name: "shop.example.com", Kinds: []annex.Kind{widgets().AlsoServedAs("apps", "gadgets", same()).AlsoServedAs("", "widgets", same())}},
	}}
}

func coreObject(kind, name string, fields ...map[string]any) map[string]any {
	obj := object("v1", kind, name, fields...)
	obj["apiVersion"] = "v1"
	return obj
}

func TestCoreGroup_kindsBesideNamespaces(t *testing.T) {
	t.Parallel()
	c := start(t, fakeCluster())
	c.post("/api/v1/nodes", coreObject("Node", "n")).want(http.StatusCreated)
	pod := func(name string) map[string]any {
		return coreObject("Pod", name, spec(fields{"nodeName": "n", "containers": []any{map[string]any{"name": "c", "image": "i"}}}))
	}
	c.post("/api/v1/namespaces/default/pods", pod("a")).want(http.StatusCreated)
	c.apply("/api/v1/namespaces/default/pods/b", "test", pod("b")).want(http.StatusCreated)
	applied := c.apply("/api/v1/namespaces/default/pods/b", "other",
		coreObject("Pod", "b", spec(fields{"containers": []any{map[string]any{"name": "d"}}}))).
		want(http.StatusOK)
	if containers := applied.object()["spec"].(map[string]any)["containers"].([]any); len(containers) != 2 {
		t.Errorf("an apply does not merge containers by name: %v", containers)
	}
	if names := c.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn").want(http.StatusOK).names(); strings.Join(names, " ") != "a b" {
		t.Errorf("pods: %v", names)
	}
	c.patch("application/merge-patch+json", "/api/v1/namespaces/default/pods/a/status", status(fields{"phase": "Running"})).
		want(http.StatusOK)
	c.get("/api/v1/namespaces/default/serviceaccounts").want(http.StatusOK)
	role := c.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/core:aggregate-to-view").want(http.StatusOK)
	if !strings.Contains(string(role.raw), `"pods"`) {
		t.Errorf("the role is %s", role.raw)
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1"} {
		if doc := c.get(path).want(http.StatusOK); !strings.Contains(string(doc.raw), "/api/v1/namespaces/{namespace}/pods/{name}/status") {
			t.Errorf("%s has no pods", path)
		}
	}

	c.namespace("gone")
	c.post("/api/v1/namespaces/gone/pods", pod("a")).want(http.StatusCreated)
	c.delete("/api/v1/namespaces/gone", nil).want(http.StatusOK)
	c.until(http.StatusNotFound, func() *answer { return c.get("/api/v1/namespaces/gone") })
	c.get("/api/v1/namespaces/gone/pods/a").want(http.StatusNotFound)
}

func TestGroups_withoutDomain_sameObjects(t *testing.T) {
	t.Parallel()
	c := start(t, fakeCluster())
	c.create("a")
	for path, kind := range map[string]string{"/apis/apps/v1/namespaces/default/gadgets/a": "apps/v1",
		"/api/v1/namespaces/default/widgets/a": "v1"} {
		if obj := c.get(path).want(http.StatusOK).object(); obj["apiVersion"] != kind || obj["kind"] != "Widget" {
			t.Errorf("%s is a %s of %s", path, obj["kind"], obj["apiVersion"])
		}
	}
}

func TestCoreGroup_discovery(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, fakeCluster())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	want := map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "nodes"}:                   false,
		{Version: "v1", Resource: "pods"}:                    true,
		{Version: "v1", Resource: "pods/status"}:             true,
		{Version: "v1", Resource: "namespaces"}:              false,
		{Version: "v1", Resource: "serviceaccounts/token"}:   true,
		{Version: "v1", Resource: "widgets"}:                 true,
		{Group: "apps", Version: "v1", Resource: "gadgets"}:  true,
		{Group: "apps", Version: "v1", Resource: "nowhere"}:  false,
		{Group: "", Version: "v1", Resource: "clusterroles"}: false,
	}
	for name, use := range map[string]func() ([]*metav1.APIResourceList, error){
		"each group": func() ([]*metav1.APIResourceList, error) {
			_, lists, err := discovery.ServerGroupsAndResources(unaggregated{client.Discovery()})
			return lists, err
		},
		"aggregated": func() ([]*metav1.APIResourceList, error) {
			_, lists, err := client.Discovery().ServerGroupsAndResources()
			return lists, err
		},
	} {
		lists, err := use()
		if err != nil {
			t.Fatal(err)
		}
		found := map[schema.GroupVersionResource]bool{}
		for _, l := range lists {
			gv, err := schema.ParseGroupVersion(l.GroupVersion)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range l.APIResources {
				if namespaced, ok := want[gv.WithResource(r.Name)]; ok && namespaced != r.Namespaced {
					t.Errorf("%s: %s is namespaced: %t", name, gv.WithResource(r.Name), r.Namespaced)
				}
				found[gv.WithResource(r.Name)] = true
			}
		}
		for r := range want {
			if there := r.Resource != "nowhere" && r.Resource != "clusterroles"; found[r] != there {
				t.Errorf("%s: %s is there: %t", name, r, found[r])
			}
		}
	}
	if _, err := client.CoreV1().
		Nodes().
		Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// unaggregated requests the discovery of each group and version.
type unaggregated struct{ discovery.DiscoveryInterface }

func TestAggregated_clusterGroups_areRejected(t *testing.T) {
	t.Parallel()
	kinds := []annex.Kind{annex.KindOf[corev1.Node, corev1.NodeList]("nodes", core.API)}
	also := func(group string) annex.Server {
		return only(widgets().AlsoServedAs(group, "widgets", annex.SameVersion[v1.Widget, v1.Widget]("v1")))
	}
	for name, test := range map[string]struct {
		server     annex.Server
		standalone bool
		want       string
	}{
		"the core group": {annex.Server{Name: "shop", Groups: []annex.Group{{Kinds: kinds}}}, false, "an aggregated server cannot serve " +
			"the core group, which the cluster serves"},
		"a group without a domain": {also("apps"), false, `group "apps": an aggregated server can only serve groups with a domain, such as ` +
			`apps.example.com`},
		"a group of Kubernetes": {also("networking.k8s.io"), false, `group "networking.k8s.io": an aggregated server cannot serve groups below *.k8s.io, which are reserved for Kubernetes`},
		"what the server has anyway": {only(widgets().AlsoServedAs("", "serviceaccounts", annex.SameVersion[v1.Widget, v1.Widget]("v1"))),
			true, "every server has serviceaccounts already: remove the kind, or use another group"},
		"a kind of what it has anyway": {annex.Server{Name: "shop",
			Groups: []annex.Group{{Kinds: []annex.Kind{annex.KindOf[corev1.ServiceAccount, corev1.ServiceAccountList]("accounts", core.API)}}}},
			true, "kind ServiceAccount (accounts): every server has serviceaccounts already"},
	} {
		t.Run(name, func(t *testing.T) {
			instance, err := annex.New(t.Context(), test.server, annex.Options{Storage: memory.Storage(), Aggregated: !test.standalone})
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("no %q in\n%v", test.want, err)
			}
		})
	}
}
