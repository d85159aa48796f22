package apitest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

// joined is an aggregated server and its cluster.
type joined struct {
	t       *testing.T
	cluster *clustertest.Cluster
	url     string
	stop    func()
}

// join starts a server that is aggregated by a cluster. It may never become ready.
func join(t *testing.T, cluster *clustertest.Cluster, server annex.Server, options annex.Options) *joined {
	t.Helper()
	options.Aggregated = true
	if options.Storage == nil {
		options.Storage = memory.Storage()
	}
	if options.Listen == "" {
		options.Listen = anyPort
	}
	if options.Cluster.Kubeconfig == "" {
		options.Cluster.Kubeconfig = cluster.Kubeconfig()
	}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- instance.Run(ctx, nil) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server failed: %v", err)
		}
	})
	t.Cleanup(stop)
	j := &joined{t: t, cluster: cluster, url: instance.URL(), stop: stop}
	if cluster != nil {
		cluster.Aggregate(j.url)
	}
	return j
}

// caller sends requests to an aggregated server, with its own credentials.
type caller struct {
	*joined
	transport *http.Transport
	header    http.Header
}

// through returns a user whose requests come through the cluster.
func (j *joined) through(user string, groups ...string) *caller {
	return &caller{j, j.cluster.FrontProxy(), http.Header{"X-Remote-User": {user}, "X-Remote-Group": groups}}
}

// admin returns a user with all rights, who needs no authorization by the cluster.
func (j *joined) admin() *caller { return j.through("admin", "system:masters") }

// do sends a request. The connection ends with it.
func (c *caller) do(method, path, contentType, body string) *answer {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return &answer{t: c.t, asked: method + " " + path, code: response.StatusCode, header: response.Header, raw: data}
}

func (c *caller) get(path string) *answer { c.t.Helper(); return c.do(http.MethodGet, path, "", "") }

func (c *caller) post(path, body string) *answer {
	c.t.Helper()
	return c.do(http.MethodPost, path, jsonType, body)
}

// askUntil repeats a request until the response satisfies wanted.
func askUntil(t *testing.T, ask func() *answer, wanted func(*answer) bool) *answer {
	t.Helper()
	var a *answer
	testwait.NoError(t, "the answer that the test waits for", func(context.Context) error {
		if a = ask(); !wanted(a) {
			return fmt.Errorf("%s: still %d %s", a.asked, a.code, a.raw)
		}
		return nil
	})
	return a
}

// ready waits until the server is ready.
func (j *joined) ready() *joined {
	j.t.Helper()
	askUntil(j.t, func() *answer { return j.admin().get("/readyz?verbose") }, func(a *answer) bool { return a.code == http.StatusOK })
	return j
}

// unready waits until /readyz fails with all of the texts, while the server is alive.
func (j *joined) unready(texts ...string) {
	j.t.Helper()
	askUntil(j.t, func() *answer { return j.admin().get("/readyz") }, func(a *answer) bool {
		for _, text := range texts {
			if !strings.Contains(string(a.raw), text) {
				return false
			}
		}
		return a.code != http.StatusOK
	})
	if a := j.admin().get("/livez"); a.code != http.StatusOK {
		j.t.Errorf("not alive: %d %s", a.code, a.raw)
	}
}

const oneWidget = `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q}}`

func TestAggregated_callersByFrontProxyHeaders(t *testing.T) {
	cluster := clustertest.Start(t)
	asked := make(chan authorizationv1.SubjectAccessReviewSpec, 100)
	cluster.Allow(func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		if spec.User != "jane" {
			return false // Another package's aggregator may still dial a port that its ended server had.
		}
		asked <- spec
		return true
	})
	j := join(t, cluster, shop(), annex.Options{}).ready()

	jane := j.through("jane", "kitchen")
	jane.header["X-Remote-Uid"], jane.header["X-Remote-Extra-Scopes"] = []string{"42"}, []string{"some"}
	if a := jane.get(widgetsPath); a.code != http.StatusOK {
		t.Fatalf("%d %s", a.code, a.raw)
	}
	got := <-asked
	if got.User != "jane" || got.UID != "42" || fmt.Sprint(got.Groups) != "[kitchen system:authenticated]" ||
		fmt.Sprint(got.Extra) != "map[scopes:[some]]" {
		t.Errorf("the cluster was asked about %+v", got)
	}
	if at := got.ResourceAttributes; at == nil || at.Group != "shop.example.com" || at.Resource != "widgets" || at.Verb != "list" ||
		at.Namespace != "default" {
		t.Errorf("the cluster was asked whether %+v", at)
	}
	if a := jane.get(widgetsPath); a.code != http.StatusOK || len(asked) > 0 {
		t.Errorf("%d; an answer was not used again", a.code)
	}
	if a := j.through("joe").
		get(widgetsPath); a.code != http.StatusForbidden ||
		!strings.Contains(string(a.raw), `User \"joe\" cannot list`) {
		t.Errorf("joe: %d %s", a.code, a.raw)
	}
}

func TestAggregated_forgedHeaders_areRejected(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Allow(func(spec authorizationv1.SubjectAccessReviewSpec) bool { return spec.User == "alice" })
	cluster.Know("secret", authenticationv1.UserInfo{Username: "alice"})
	j := join(t, cluster, shop(), annex.Options{}).ready()
	forged := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}

	strangers := clustertest.NewAuthority(t, "strangers", time.Now())
	for name, test := range map[string]struct {
		transport *http.Transport
		header    http.Header
		code      int
	}{
		"a certificate of an unknown authority": {strangers.Transport(t, "front-proxy-client"), forged, http.StatusUnauthorized},
		"a name that is not allowed":            {cluster.RequestHeaderCA.Transport(t, "alice"), forged, http.StatusUnauthorized},
		"a client of the cluster is who it is":  {cluster.ClientCA.Transport(t, "joe"), forged, http.StatusForbidden},
		"a client may be allowed":               {cluster.ClientCA.Transport(t, "alice"), forged, http.StatusOK},
		"no certificate at all, anonymous":      {cluster.Plain(), forged, http.StatusForbidden},
		"a token is whose it is": {cluster.Plain(),
			http.Header{"Authorization": {"Bearer secret"}, "X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}, http.StatusOK},
		"a token that is wrong":                     {cluster.Plain(), http.Header{"Authorization": {"Bearer wrong"}}, http.StatusUnauthorized},
		"the cluster without a user in its headers": {cluster.FrontProxy(), http.Header{}, http.StatusUnauthorized},
		"the front proxy's name of another issuer":  {cluster.ClientCA.Transport(t, "front-proxy-client"), forged, http.StatusForbidden},
	} {
		c := &caller{j, test.transport, test.header}
		if a := c.get(widgetsPath); a.code != test.code {
			t.Errorf("%s: %d instead of %d: %s", name, a.code, test.code, a.raw)
		}
	}
	if n := cluster.Reviews("tokenreviews"); n != 2 {
		t.Errorf("the cluster was asked about %d tokens instead of 2", n)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/cluster", "/version"} {
		if a := (&caller{j, cluster.Plain(), nil}).get(path); a.code != http.StatusOK {
			t.Errorf("anybody at %s: %d", path, a.code)
		}
	}
	for _, path := range []string{"/metrics", "/storage/stats", "/apis", "/openapi/v3"} {
		if a := (&caller{j, cluster.Plain(), nil}).get(path); a.code != http.StatusForbidden {
			t.Errorf("anybody at %s: %d", path, a.code)
		}
	}
}

func TestAggregated_authenticationConfig_isReloaded(t *testing.T) {
	cluster := clustertest.Start(t)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	code := func(c *caller) func() *answer { return func() *answer { return c.get(widgetsPath) } }
	is := func(code int) func(*answer) bool { return func(a *answer) bool { return a.code == code } }

	proxies, clients := clustertest.NewAuthority(t, "proxies", time.Now()), clustertest.NewAuthority(t, "clients", time.Now())
	cluster.Configure(func(data map[string]string) {
		data["client-ca-file"] = string(clients.PEM)
		data["requestheader-client-ca-file"] = string(proxies.PEM)
		data["requestheader-allowed-names"] = `["other"]`
		data["requestheader-username-headers"] = `["X-Caller"]`
	})
	header := http.Header{"X-Caller": {"jane"}}
	askUntil(t, code(&caller{j, proxies.Transport(t, "other"), header}), is(http.StatusOK))
	askUntil(t, code(&caller{j, clients.Transport(t, "jane"), nil}), is(http.StatusOK))
	askUntil(t, code(&caller{j, cluster.FrontProxy(), http.Header{"X-Remote-User": {"jane"}}}), is(http.StatusUnauthorized))
	askUntil(t, code(&caller{j, cluster.ClientCA.Transport(t, "jane"), nil}), is(http.StatusUnauthorized))
}

func TestAggregated_protectedPaths_needAuthentication(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Allow(func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		return spec.User == "alice" && spec.NonResourceAttributes != nil
	})
	var options annex.Options
	options.Cluster.AlwaysAllowPaths = []string{}
	j := join(t, cluster, shop(), options).ready()
	// The authority of the cluster's clients is read beside the request headers, which a server that is ready has read.
	askUntil(t, func() *answer { return (&caller{j, cluster.ClientCA.Transport(t, "alice"), nil}).get("/version") },
		func(a *answer) bool { return a.code != http.StatusUnauthorized })
	for _, path := range []string{"/readyz", "/livez", "/healthz", "/version"} {
		for name, test := range map[string]struct {
			caller *caller
			code   int
		}{
			"anonymous":                {&caller{j, cluster.Plain(), nil}, http.StatusForbidden},
			"a client of the cluster":  {&caller{j, cluster.ClientCA.Transport(t, "alice"), nil}, http.StatusOK},
			"another of them":          {&caller{j, cluster.ClientCA.Transport(t, "joe"), nil}, http.StatusForbidden},
			"a caller through cluster": {j.through("alice"), http.StatusOK},
		} {
			if a := test.caller.get(path); a.code != test.code {
				t.Errorf("%s at %s: %d instead of %d: %s", name, path, a.code, test.code, a.raw)
			}
		}
	}
}

func TestAggregated_servesNoNamespaces(t *testing.T) {
	cluster := clustertest.Start(t)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	for path, want := range map[string]int{"/api": http.StatusNotFound, "/api/v1": http.StatusNotFound,
		"/api/v1/namespaces": http.StatusNotFound, "/apis/shop.example.com/v1": http.StatusOK} {
		if a := j.admin().get(path); a.code != want {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	if a := j.admin().get("/openapi/v2"); strings.Contains(string(a.raw), "io.k8s.api.core.v1.Namespace\"") {
		t.Error("OpenAPI knows namespaces")
	}
}

func TestAggregated_hostNamespaces(t *testing.T) {
	cluster := clustertest.Start(t)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	in := func(namespace string) *answer {
		return j.admin().post("/apis/shop.example.com/v1/namespaces/"+namespace+"/widgets", fmt.Sprintf(oneWidget, "a"))
	}
	if a := in("default"); a.code != http.StatusCreated {
		t.Fatalf("%d %s", a.code, a.raw)
	}
	if a := in("none"); a.code != http.StatusNotFound || !strings.Contains(string(a.raw), `namespaces \"none\" not found`) {
		t.Errorf("in a namespace that is missing: %d %s", a.code, a.raw)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	cluster.Put(ns)
	if a := in("new"); a.code != http.StatusCreated {
		t.Fatalf("in a namespace made just now: %d %s", a.code, a.raw)
	}
	ns.Status.Phase = corev1.NamespaceTerminating
	cluster.Put(ns)
	a := askUntil(t, func() *answer { return in("new") }, func(a *answer) bool { return a.code == http.StatusForbidden })
	if !strings.Contains(string(a.raw), "NamespaceTerminating") {
		t.Errorf("no cause: %s", a.raw)
	}
	// As the cluster's namespace controller does.
	path := "/apis/shop.example.com/v1/namespaces/new/widgets"
	if a := j.admin().do(http.MethodDelete, path, "", ""); a.code != http.StatusOK {
		t.Errorf("delete what is in it: %d %s", a.code, a.raw)
	}
	if a := j.admin().get(path); strings.Contains(string(a.raw), `"name":"a"`) {
		t.Errorf("left behind: %s", a.raw)
	}
}

// The cluster's garbage collector removes these finalizers. A server that stands alone has no garbage collector, and
// deletes at once.
func TestAggregated_deletionsWaitForGarbageCollector(t *testing.T) {
	cluster := clustertest.Start(t)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	const path = "/apis/shop.example.com/v1/namespaces/default/widgets"
	for policy, finalizer := range map[string]string{"Foreground": "foregroundDeletion", "Orphan": "orphan", "Background": ""} {
		name := strings.ToLower(policy)
		if a := j.admin().post(path, fmt.Sprintf(oneWidget, name)); a.code != http.StatusCreated {
			t.Fatalf("%d %s", a.code, a.raw)
		}
		if a := j.admin().do(http.MethodDelete, path+"/"+name+"?propagationPolicy="+policy, "", ""); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", policy, a.code, a.raw)
		}
		a := j.admin().get(path + "/" + name)
		if finalizer == "" && a.code != http.StatusNotFound {
			t.Errorf("%s: %d %s", policy, a.code, a.raw)
		}
		if finalizer != "" && !strings.Contains(string(a.raw), `"finalizers":["`+finalizer+`"]`) {
			t.Errorf("%s: %d %s", policy, a.code, a.raw)
		}
	}
	patch := func(name string) *answer {
		return j.admin().do(http.MethodPatch, path+"/"+name, "application/merge-patch+json", `{"metadata":{"finalizers":null}}`)
	}
	for _, name := range []string{"foreground", "orphan"} {
		if a := patch(name); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
		if a := j.admin().get(path + "/" + name); a.code != http.StatusNotFound {
			t.Errorf("%s is left: %d %s", name, a.code, a.raw)
		}
	}
}

func TestAggregated_missingPermissions_areNamed(t *testing.T) {
	for name, test := range map[string]struct {
		forbidden []string
		says      []string
		// write is the response to a member of system:masters, read the response to any other user.
		write, read int
	}{
		"the ConfigMap": {[]string{"configmaps"}, []string{"role extension-apiserver-authentication-reader in kube-system",
			"`shop manifests`"}, 0, 0},
		"token reviews": {[]string{"tokenreviews"}, []string{"ClusterRole system:auth-delegator"}, http.StatusServiceUnavailable, http.StatusOK},
		"access reviews": {
			[]string{"subjectaccessreviews"}, []string{"ClusterRole system:auth-delegator"},
			http.StatusServiceUnavailable, http.StatusServiceUnavailable,
		},
		"namespaces": {[]string{"namespaces"}, []string{"get, list and watch on namespaces"}, http.StatusServiceUnavailable, http.StatusOK},
		"policies": {
			[]string{"mutatingadmissionpolicies", "validatingwebhookconfigurations"},
			[]string{"list and watch on mutatingadmissionpolicies.admissionregistration.k8s.io, list and watch on " +
				"validatingwebhookconfigurations.admissionregistration.k8s.io; `shop manifests` prints the required bindings"},
			http.StatusServiceUnavailable, http.StatusOK,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := clustertest.Start(t)
			cluster.Forbid(test.forbidden...)
			j := join(t, cluster, shop(), annex.Options{})
			anybody := func() *answer { return (&caller{j, cluster.Plain(), nil}).get("/readyz") }
			askUntil(t, anybody, func(a *answer) bool {
				for _, text := range test.says {
					if !strings.Contains(string(a.raw), text) {
						return false
					}
				}
				// Hooks of the start may be another reason at first.
				return a.code == http.StatusInternalServerError && strings.Count(string(a.raw), "[-]") == 1
			})
			if a := (&caller{j, cluster.Plain(), nil}).get("/livez"); a.code != http.StatusOK {
				t.Errorf("not alive: %d %s", a.code, a.raw)
			}
			if test.write != 0 {
				askUntil(t, func() *answer { return j.admin().post(widgetsPath, fmt.Sprintf(oneWidget, "a")) }, func(a *answer) bool {
					return a.code == test.write && strings.Contains(string(a.raw), "prints the required bindings")
				})
				askUntil(t, func() *answer { return j.through("jane").get(widgetsPath) }, func(a *answer) bool { return a.code == test.read })
			}
			cluster.Permit(test.forbidden...)
			j.ready()
			if a := j.through("jane").post(widgetsPath, fmt.Sprintf(oneWidget, "a")); a.code != http.StatusCreated {
				t.Errorf("write: %d %s", a.code, a.raw)
			}
		})
	}
}

func TestAggregated_revokedPermission_isReported(t *testing.T) {
	cluster := clustertest.Start(t)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	cluster.Forbid("validatingadmissionpolicies")
	j.unready("list and watch on validatingadmissionpolicies.admissionregistration.k8s.io")
	if a := j.admin().post(widgetsPath, fmt.Sprintf(oneWidget, "a")); a.code != http.StatusServiceUnavailable {
		t.Errorf("write: %d %s", a.code, a.raw)
	}
	cluster.Permit("validatingadmissionpolicies")
	j.ready()
}

func TestAggregated_waitsForCluster(t *testing.T) {
	cluster := clustertest.Start(t)
	kubeconfig := cluster.Kubeconfig()
	cluster.Down()
	options := annex.Options{}
	options.Cluster.Kubeconfig = kubeconfig
	j := join(t, cluster, shop(), options)
	anybody := &caller{j, cluster.Plain(), nil}
	askUntil(t, func() *answer { return anybody.get("/readyz") }, func(a *answer) bool {
		return a.code == http.StatusInternalServerError && strings.Contains(string(a.raw), "cannot be reached: dial tcp 127.0.0.1")
	})
	if a := anybody.get("/livez"); a.code != http.StatusOK {
		t.Errorf("not alive: %d %s", a.code, a.raw)
	}
	if a := anybody.get(widgetsPath); a.code != http.StatusServiceUnavailable || !strings.Contains(string(a.raw), "cannot be reached") {
		t.Errorf("read: %d %s", a.code, a.raw)
	}
	cluster.Up()
	j.ready()
	// A restart of kube-apiserver changes nothing: the cached data stays valid.
	cluster.Down()
	if a := j.admin().post(widgetsPath, fmt.Sprintf(oneWidget, "a")); a.code != http.StatusCreated {
		t.Errorf("write: %d %s", a.code, a.raw)
	}
	if a := j.admin().get("/readyz"); a.code != http.StatusOK {
		t.Errorf("ready: %d %s", a.code, a.raw)
	}
}

// A kube-apiserver that does not answer is no reason to reject tokens as invalid.
func TestAggregated_unreachableCluster_rejectsNoTokens(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Know("good", authenticationv1.UserInfo{Username: "jane"})
	options := annex.Options{}
	options.Cluster.Kubeconfig, options.Cluster.TokenCacheTTL = cluster.Kubeconfig(), -1
	j := join(t, cluster, shop(), options).ready()
	bearer := func(token string) *caller {
		return &caller{j, cluster.Plain(), http.Header{"Authorization": {"Bearer " + token}}}
	}
	for token, code := range map[string]int{"good": http.StatusOK, "wrong": http.StatusUnauthorized} {
		if a := bearer(token).get(widgetsPath); a.code != code {
			t.Errorf("%s: %d %s", token, a.code, a.raw)
		}
	}
	cluster.Down()
	for _, token := range []string{"good", "wrong"} {
		a := bearer(token).get(widgetsPath)
		if a.code != http.StatusServiceUnavailable || !strings.Contains(string(a.raw), `"reason":"ServiceUnavailable"`) ||
			!strings.Contains(string(a.raw), "cannot be reached") {
			t.Errorf("%s while the cluster is silent: %d %s", token, a.code, a.raw)
		}
	}
	cluster.Up()
	askUntil(t, func() *answer { return bearer("good").get(widgetsPath) }, func(a *answer) bool { return a.code == http.StatusOK })
	if a := bearer("wrong").get(widgetsPath); a.code != http.StatusUnauthorized {
		t.Errorf("wrong: %d %s", a.code, a.raw)
	}
}

// webhook serves a webhook and returns its client configuration.
func webhook(
	t *testing.T,
	cluster *clustertest.Cluster,
	review func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse,
) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	url, ca := cluster.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
			return
		}
		body.Response = review(body.Request)
		body.Response.UID = body.Request.UID
		_ = json.NewEncoder(w).Encode(body)
	}))
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca}
}

func TestAggregated_hostWebhooks(t *testing.T) {
	cluster := clustertest.Start(t)
	seen := make(chan *admissionv1.AdmissionRequest, 10)
	mutate := webhook(t, cluster, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		seen <- r
		kind := admissionv1.PatchTypeJSONPatch
		return &admissionv1.AdmissionResponse{
			Allowed:   true,
			PatchType: &kind,
			Patch:     []byte(`[{"op":"add","path":"/metadata/labels","value":{"by":"the-host"}}]`),
		}
	})
	validate := webhook(t, cluster, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if !strings.Contains(string(r.Object.Raw), "the-host") {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "unmutated"}}
		}
		return &admissionv1.AdmissionResponse{Allowed: r.Name != "bad", Result: &metav1.Status{Message: "bad name"}}
	})
	none, equivalent := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent
	rules := []admissionregistrationv1.RuleWithOperations{
		{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule: admissionregistrationv1.Rule{
				APIGroups:   []string{"shop.example.com"},
				APIVersions: []string{"v1"},
				Resources:   []string{"widgets"},
			},
		},
	}
	fail, seconds := admissionregistrationv1.Fail, int32(10)
	never := admissionregistrationv1.NeverReinvocationPolicy
	all := &metav1.LabelSelector{}
	cluster.Put(
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{
				{
					Name:                    "m.example.com",
					ClientConfig:            mutate,
					Rules:                   rules,
					SideEffects:             &none,
					MatchPolicy:             &equivalent,
					AdmissionReviewVersions: []string{"v1"},
					FailurePolicy:           &fail,
					TimeoutSeconds:          &seconds,
					ReinvocationPolicy:      &never,
					NamespaceSelector:       all,
					ObjectSelector:          all,
				},
			},
		},
	)
	cluster.Put(
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{
					Name:                    "v.example.com",
					ClientConfig:            validate,
					Rules:                   rules,
					SideEffects:             &none,
					MatchPolicy:             &equivalent,
					AdmissionReviewVersions: []string{"v1"},
					FailurePolicy:           &fail,
					TimeoutSeconds:          &seconds,
					NamespaceSelector:       all,
					ObjectSelector:          all,
				},
			},
		},
	)
	j := join(t, cluster, shop(), annex.Options{}).ready()
	for _, version := range []string{"v1", "v1beta1"} {
		body := func(name string) string {
			return strings.Replace(fmt.Sprintf(oneWidget, name), "shop.example.com/v1", "shop.example.com/"+version, 1)
		}
		path := "/apis/shop.example.com/" + version + "/namespaces/default/widgets"
		if a := j.through("jane").
			post(path, body("good-"+version)); a.code != http.StatusCreated ||
			!strings.Contains(string(a.raw), `"by":"the-host"`) {
			t.Fatalf("%s: %d %s", version, a.code, a.raw)
		}
		r := <-seen
		if r.UserInfo.Username != "jane" || r.Kind.Version != "v1" || r.RequestKind.Version != version || r.Namespace != "default" {
			t.Errorf("%s: the webhook saw %s of %v, requested as %v", version, r.UserInfo.Username, r.Kind, r.RequestKind)
		}
		if a := j.through("jane").post(path, body("bad")); a.code != http.StatusBadRequest || !strings.Contains(string(a.raw), "bad name") {
			t.Errorf("%s: %d %s", version, a.code, a.raw)
		}
		<-seen
	}
}

func TestAggregated_hostPolicies(t *testing.T) {
	cluster := clustertest.Start(t)
	fail, equivalent := admissionregistrationv1.Fail, admissionregistrationv1.Equivalent
	constraints := &admissionregistrationv1.MatchResources{
		MatchPolicy: &equivalent, NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule: admissionregistrationv1.Rule{
				APIGroups:   []string{"shop.example.com"},
				APIVersions: []string{"v1"},
				Resources:   []string{"widgets"},
			},
		}}},
	}
	cluster.Put(&admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "names", Generation: 1},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail, MatchConstraints: constraints,
			Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.name != 'bad'", Message: "that is a bad name"}},
		},
	})
	cluster.Put(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "names"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        "names",
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
	cluster.Put(&admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "labels", Generation: 1},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy: &fail, MatchConstraints: constraints, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{
				{
					PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
						Expression: `Object{metadata: Object.metadata{labels: {"by": "the-host"}}}`,
					},
				},
			},
		},
	})
	cluster.Put(&admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "labels"},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "labels"},
	})
	j := join(t, cluster, shop(), annex.Options{}).ready()
	for _, version := range []string{"v1", "v1beta1"} {
		path := "/apis/shop.example.com/" + version + "/namespaces/default/widgets"
		body := func(name string) string {
			return strings.Replace(fmt.Sprintf(oneWidget, name), "shop.example.com/v1", "shop.example.com/"+version, 1)
		}
		// The policy needs our schema, which it reads from the cluster every few seconds.
		n := 0
		askUntil(t, func() *answer { n++; return j.admin().post(path, body(fmt.Sprintf("good-%s-%d", version, n))) }, func(a *answer) bool {
			return a.code == http.StatusCreated && strings.Contains(string(a.raw), `"by":"the-host"`)
		})
		if a := j.admin().
			post(path, body("bad")); a.code != http.StatusUnprocessableEntity ||
			!strings.Contains(string(a.raw), "that is a bad name") {
			t.Errorf("%d %s", a.code, a.raw)
		}
	}
}

func TestAggregated_disabledPlugins_needNoPermission(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Forbid(
		"namespaces",
		"mutatingadmissionpolicies",
		"mutatingadmissionpolicybindings",
		"validatingadmissionpolicies",
		"validatingadmissionpolicybindings",
		"mutatingwebhookconfigurations",
		"validatingwebhookconfigurations",
		"flowschemas",
		"prioritylevelconfigurations",
	)
	options := annex.Options{}
	options.Admission.DisablePlugins = []string{
		"NamespaceLifecycle",
		"MutatingAdmissionPolicy",
		"MutatingAdmissionWebhook",
		"ValidatingAdmissionPolicy",
		"ValidatingAdmissionWebhook",
	}
	j := join(t, cluster, shop(), options).ready()
	if a := j.through("jane").
		post("/apis/shop.example.com/v1/namespaces/none/widgets", fmt.Sprintf(oneWidget, "a")); a.code != http.StatusCreated {
		t.Errorf("%d %s", a.code, a.raw)
	}
	// Priority and fairness is the only feature that is left out.
	if a := j.admin().
		get("/readyz?verbose"); !strings.Contains(
		string(a.raw),
		"[+]priority-and-fairness (disabled, because the server may not read the cluster's flow schemas) ok",
	) {
		t.Errorf("readyz:\n%s", a.raw)
	}
	if a := j.admin().get("/metrics"); !strings.Contains(string(a.raw), "\nannex_cluster_priority_and_fairness 0\n") {
		t.Error("no figure says so")
	}
	cluster.Permit("flowschemas", "prioritylevelconfigurations")
	askUntil(t, func() *answer { return j.admin().get("/metrics") }, func(a *answer) bool {
		return strings.Contains(string(a.raw), "\nannex_cluster_priority_and_fairness 1\n")
	})
	if a := j.admin().get(widgetsPath); a.header.Get("X-Kubernetes-Pf-Flowschema-Uid") == "" && a.code != http.StatusOK {
		t.Errorf("%d %v", a.code, a.header)
	}
}

func TestAggregated_clockSkew(t *testing.T) {
	cluster := clustertest.StartAt(t, time.Now().Add(30*time.Minute))
	j := join(t, cluster, shop(), annex.Options{})
	anybody := &caller{j, cluster.Plain(), nil}
	// By our clock, its certificate is not valid yet.
	askUntil(t, func() *answer { return anybody.get("/readyz") }, func(a *answer) bool {
		return strings.Contains(string(a.raw), "certificate has expired or is not yet valid")
	})

	cluster = clustertest.StartAt(t, time.Now().Add(-30*time.Minute))
	j = join(t, cluster, shop(), annex.Options{}).ready()
	a := j.admin().get("/metrics")
	if i := strings.Index(string(a.raw), "\nannex_cluster_clock_skew_seconds -1"); i < 0 {
		t.Error("no figure says by how much")
	}
}

func TestAggregated_invalidOptions(t *testing.T) {
	cluster := clustertest.Start(t)
	kubeconfig := cluster.Kubeconfig()
	for name, test := range map[string]struct {
		change func(*annex.Options)
		want   string
	}{
		"a kubeconfig that is missing": {func(o *annex.Options) { o.Cluster.Kubeconfig = "/missing/kubeconfig" },
			"Options.Cluster.Kubeconfig /missing/kubeconfig: stat /missing/kubeconfig: no such file or directory"},
		"a kubeconfig that is none": {
			func(o *annex.Options) { o.Cluster.AuthorizationKubeconfig = clustertest.File(t, "k", []byte("{]")) },
			"Options.Cluster.AuthorizationKubeconfig ",
		},
		"no way to a cluster": {func(o *annex.Options) { o.Cluster.Kubeconfig = "" },
			"requires Options.Cluster.Kubeconfig"},
		"an unknown plugin": {func(o *annex.Options) { o.Admission.DisablePlugins = []string{"LimitRanger"} },
			`Options.Admission.DisablePlugins: unknown plugin "LimitRanger"; plugins: NamespaceLifecycle,`},
		"a plugin both on and off": {func(o *annex.Options) {
			o.Admission.DisablePlugins, o.Admission.EnablePlugins = []string{"NamespaceLifecycle"}, []string{"NamespaceLifecycle"}
		}, "both in Options.Admission.EnablePlugins and in Options.Admission.DisablePlugins"},
		"headers without authority": {func(o *annex.Options) { o.RequestHeader.AllowedNames = []string{"a"} },
			"Options.RequestHeader.AllowedNames requires Options.RequestHeader.ClientCAFile, the certificate authorities of clients that " +
				"may send the headers"},
		"an authority that is missing": {
			func(o *annex.Options) { o.RequestHeader.ClientCAFile = "/missing/ca.crt" }, "Options.RequestHeader.ClientCAFile: open " +
				"/missing/ca.crt: no such file or directory",
		},
		"UIDs in other headers only": {
			func(o *annex.Options) {
				o.RequestHeader.ClientCAFile, o.RequestHeader.UIDHeaders = clustertest.File(t, "ca", cluster.RequestHeaderCA.PEM), []string{"X-UID"}
			}, "lacks X-Remote-Uid",
		},
		"client authorities that are none": {func(o *annex.Options) { o.ClientCAFile = clustertest.File(t, "ca", []byte("nothing")) },
			"Options.ClientCAFile: "},
		"authorities in memory": {func(o *annex.Options) { o.ClientCA = []byte("PEM") }, "client authorities in memory require a standalone server"},
		"a token file":          {func(o *annex.Options) { o.TokenAuthFile = "tokens.csv" }, "Options.TokenAuthFile requires a standalone server"},
		"a place for namespaces": {func(o *annex.Options) {
			o.StorageOf = map[schema.GroupResource]annex.Storage{{Resource: "namespaces"}: memory.Storage()}
		}, "an aggregated server uses the namespaces of its cluster"},
		"a namespace that is none": {func(o *annex.Options) { o.Cluster.LeaseNamespace = "No!" }, `Options.Cluster.LeaseNamespace "No!": a ` +
			`lowercase RFC 1123 label`},
		"a path that is no pattern": {func(o *annex.Options) { o.Cluster.AlwaysAllowPaths = []string{"/a*b"} },
			"Options.Cluster.AlwaysAllowPaths: "},
		"no cluster at all": {func(o *annex.Options) { o.Aggregated = false }, "Options.Cluster.Kubeconfig requires an aggregated server: " +
			"add Options.Aggregated"},
	} {
		options := annex.Options{Storage: memory.Storage(), Aggregated: true}
		options.Cluster.Kubeconfig = kubeconfig
		test.change(&options)
		instance, err := annex.New(t.Context(), shop(), options)
		if err == nil {
			_ = instance.Close()
			t.Errorf("%s: not refused", name)
			continue
		}
		if !errors.As(err, new(*annex.ConfigError)) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %T: %v", name, err, err)
		}
	}
}

func TestAggregated_filesReplaceHostConfig(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Forbid("configmaps")
	cluster.Allow(func(spec authorizationv1.SubjectAccessReviewSpec) bool { return spec.UID == "" })
	options := annex.Options{ClientCAFile: clustertest.File(t, "client", cluster.ClientCA.PEM)}
	options.RequestHeader.ClientCAFile = clustertest.File(t, "proxy", cluster.RequestHeaderCA.PEM)
	j := join(t, cluster, shop(), options).ready()
	for name, c := range map[string]*caller{"proxy": j.through("jane"), "client": {j, cluster.ClientCA.Transport(t, "jane"), nil}} {
		if name == "proxy" {
			c.header["X-Remote-Uid"] = []string{"forged"} // is not one of the given headers
		}
		if a := c.get(widgetsPath); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}

	skipping := annex.Options{}
	skipping.Cluster.SkipLookup = true
	j = join(t, cluster, shop(), skipping)
	askUntil(
		t,
		func() *answer { return (&caller{j, cluster.Plain(), nil}).get("/readyz") },
		func(a *answer) bool { return a.code == http.StatusOK },
	)
	if a := j.through("jane").get("/version"); a.code != http.StatusOK {
		t.Errorf("a certificate of an authority that is not looked up: %d %s", a.code, a.raw)
	}

	tolerating := annex.Options{}
	tolerating.Cluster.TolerateLookupFailure = true
	j = join(t, cluster, shop(), tolerating)
	askUntil(
		t,
		func() *answer { return (&caller{j, cluster.Plain(), nil}).get("/readyz") },
		func(a *answer) bool { return a.code == http.StatusOK },
	)
}

func TestAggregated_filesStorage_hostNamespaces(t *testing.T) {
	cluster := clustertest.Start(t)
	f := newTree(t)
	f.write(f.path("shop.example.com/widgets/default/good.yaml"), handWidget("good", "small"))
	f.write(f.path("shop.example.com/widgets/none/stray.yaml"), handWidget("stray", "small"))
	j := join(t, cluster, shop(), f.options()).ready()
	list := func() *answer { return j.admin().get("/apis/shop.example.com/v1/widgets") }
	a := askUntil(t, list, func(a *answer) bool { return strings.Contains(string(a.raw), `"name":"good"`) })
	if strings.Contains(string(a.raw), "stray") {
		t.Errorf("an object is in a namespace that does not exist: %s", a.raw)
	}
	cluster.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}})
	askUntil(t, list, func(a *answer) bool { return strings.Contains(string(a.raw), `"name":"stray"`) })
	f.gone(f.path("core"))
}

func TestAggregated_virtualKinds_needNoStorage(t *testing.T) {
	cluster := clustertest.Start(t)
	s := newSystem("a", "b")
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{virtualWidgets(s.polled())}}}}
	j := join(t, cluster, server, annex.Options{}).ready()
	if a := j.admin().get(widgetsPath); a.code != http.StatusOK || !strings.Contains(string(a.raw), `"name":"b"`) {
		t.Errorf("%d %s", a.code, a.raw)
	}
	for _, path := range []string{"/storage/stats", "/metrics"} {
		if a := j.admin().get(path); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.code, a.raw)
		}
	}
}

func TestAggregated_hasNoAdministrator(t *testing.T) {
	cluster := clustertest.Start(t)
	data := t.TempDir()
	j := join(t, cluster, shop(), annex.Options{Storage: embedded.Dir(""), DataDir: data}).ready()
	for _, name := range []string{"kubeconfig", "cert/admin.crt", "cert/admin.key"} {
		if _, err := os.Stat(filepath.Join(data, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if a := j.admin().post(widgetsPath, fmt.Sprintf(oneWidget, "a")); a.code != http.StatusCreated {
		t.Errorf("%d %s", a.code, a.raw)
	}

	// A key pair in the place where upstream's servers expect it is used, and nothing is created.
	dir := t.TempDir()
	pair := clustertest.NewAuthority(t, "ours", time.Now()).Issue(t, "127.0.0.1")
	writePair(t, pair, filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key"))
	j = join(t, cluster, shop(), annex.Options{CertDir: dir}).ready()
	transport := cluster.Plain()
	response, err := (&http.Client{Transport: transport}).Get(j.url + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if !bytes.Equal(response.TLS.PeerCertificates[0].Raw, pair.Certificate[0]) {
		t.Error("another certificate is served")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("%v %v", entries, err)
	}
}

func writePair(t *testing.T, pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		keyFile: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAggregated_oneReplicaRunsControllers(t *testing.T) {
	cluster := clustertest.Start(t)
	working := make(chan int)
	server := func(replica int) annex.Server {
		s := shop()
		s.Controllers = []annex.Controller{{Name: "pricing", Run: func(ctx context.Context, _ *annex.Env) error {
			select {
			case working <- replica:
			case <-ctx.Done():
				return nil
			}
			if replica == 2 {
				return nil // the work is done, and not repeated
			}
			<-ctx.Done()
			return nil
		}}}
		return s
	}
	options := annex.Options{}
	options.Cluster.LeaseNamespace = "default"
	first := join(t, cluster, server(1), options).ready()
	if got := <-working; got != 1 {
		t.Fatalf("replica %d works first", got)
	}
	// The leader writes the Lease, and others read it.
	looked := cluster.Reviews("leases")
	second := join(t, cluster, server(2), options).ready()
	testwait.Until(t, "the second replica looks at the Lease", func() bool { return cluster.Reviews("leases") >= looked+2 })
	select {
	case got := <-working:
		t.Fatalf("replica %d works as well", got)
	default:
	}
	first.stop()
	if got := <-working; got != 2 {
		t.Fatalf("replica %d goes on", got)
	}
	second.stop()
}
