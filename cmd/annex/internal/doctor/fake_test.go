package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	name    = "v1.shop.example.com"
	apis    = "/apis/shop.example.com/v1"
	dnsName = "api.shop.svc"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string, until time.Time) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: until.Add(-1000 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = template
	a.certificate = a.sign(t, template, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

func (a *authority) server(t *testing.T, from, until time.Time, names ...string) tls.Certificate {
	t.Helper()
	key := newKey(t)
	c := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: from, NotAfter: until,
		DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}
}

type object = map[string]any

// world is a cluster with one aggregated API server. It is healthy until a test changes it.
type world struct {
	t *testing.T
	// answers maps paths to answers: values are sent as JSON, functions are handlers.
	answers map[string]any
	// refused are paths, or "create subjectaccessreviews", that are forbidden to the user.
	refused map[string]bool
	// lacks are the permissions that the server's service account lacks, as VERB RESOURCE.
	lacks map[string]bool
	// spec is the APIService's spec. condition replaces the condition that the API server determines.
	spec      object
	condition object
	// certificate is the server's certificate, and signs the authority that issued it. With down, nothing listens.
	certificate tls.Certificate
	signs       *authority
	down        bool
	// server handles forwarded requests, by path.
	server map[string]http.HandlerFunc
	// slow is the accepted duration of discovery: a minute, since test machines are busy.
	slow time.Duration
	// clock is how far the API server's clock is ahead.
	clock time.Duration

	// taken: every object to create exists already. stranger: the caller has no permissions. standalone: the API
	// server aggregates no others.
	taken, stranger, standalone bool

	mu      sync.Mutex
	created []object
}

func newWorld(t *testing.T) *world {
	signs := newAuthority(t, "shop-ca", time.Now().Add(900*time.Hour))
	w := &world{
		t: t, slow: time.Minute, refused: map[string]bool{}, lacks: map[string]bool{}, signs: signs,
		certificate: signs.server(t, time.Now().Add(-time.Hour), time.Now().Add(500*time.Hour), dnsName),
		spec: object{
			"group": "shop.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15, "caBundle": signs.pem(),
			"service": object{"namespace": "shop", "name": "api", "port": 0},
		},
	}
	w.server = map[string]http.HandlerFunc{
		apis: respondWith(object{"kind": "APIResourceList", "groupVersion": "shop.example.com/v1", "resources": []object{
			{"name": "cats", "singularName": "cat", "kind": "Cat", "namespaced": true, "verbs": []string{"create", "get", "list", "watch"}},
		}}),
		apis + "/cats": func(response http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(response, `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`)
			fmt.Fprintln(response, `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		},
	}
	labels := object{"app": "shop"}
	w.answers = map[string]any{
		"/version": object{"gitVersion": "v1.37.1"},
		"/api":     discovery(),
		"/apis": discovery(
			group("apps", "deployments"), group("shop.example.com", "cats")),
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": items(),
		"/apis/admissionregistration.k8s.io/v1": object{"resources": []object{
			{
				"name": "validatingwebhookconfigurations",
			},
			{"name": "mutatingwebhookconfigurations"},
			{"name": "validatingadmissionpolicies"},
			{"name": "validatingadmissionpolicybindings"},
		}},
		"/api/v1/namespaces/shop": object{"metadata": object{"name": "shop"}},
		"/api/v1/namespaces/shop/pods": items(object{
			"metadata": object{"name": "api-0", "namespace": "shop", "labels": labels},
			"spec": object{"serviceAccountName": "api", "containers": []object{
				{"name": "api", "ports": []object{{"name": "https", "containerPort": 8443}}},
			}},
			"status": object{"phase": "Running"},
		}),
		"/api/v1/namespaces/shop/serviceaccounts/api": object{"metadata": object{"name": "api"}},
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication": object{"data": object{
			"client-ca-file": string(
				newAuthority(t, "clients", time.Now().Add(time.Hour)).pem(),
			),
			"requestheader-client-ca-file":       string(newAuthority(t, "front-proxy-ca", time.Now().Add(time.Hour)).pem()),
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
			"requestheader-allowed-names":        `["front-proxy-client"]`,
		}},
		"/openapi/v3":        object{"paths": object{"apis/shop.example.com/v1": object{"serverRelativeURL": "/openapi/v3" + apis + "?hash=1"}}},
		"/openapi/v3" + apis: object{"paths": object{apis: object{}}},
	}
	for _, kind := range []string{"deployments", "statefulsets", "daemonsets"} {
		w.answers["/apis/apps/v1/namespaces/shop/"+kind] = items()
	}
	return w
}

func items(all ...object) object {
	if all == nil {
		all = []object{}
	}
	return object{"items": all}
}

func group(name string, resources ...string) object {
	var list []object
	for _, r := range resources {
		list = append(list, object{"resource": r, "singularResource": strings.TrimSuffix(r, "s"), "verbs": []string{"create", "list", "watch"}})
	}
	return object{"metadata": object{"name": name}, "versions": []object{{"version": "v1", "freshness": "Current", "resources": list}}}
}

func discovery(groups ...object) object {
	return object{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": groups}
}

func respondWith(value any) http.HandlerFunc {
	return func(response http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(response).Encode(value) }
}

func (w *world) apiService(name string, spec object) object {
	return object{"metadata": object{"name": name}, "spec": spec}
}

// others adds further APIServices.
func (w *world) others(all ...object) { w.answers["others"] = all }

// start starts the server and the cluster, and returns the configuration of a client of the cluster.
func (w *world) start() *rest.Config {
	w.t.Helper()
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if answer, found := w.server[request.URL.Path]; found {
			answer(response, request)
			return
		}
		http.NotFound(response, request)
	}))
	quiet := log.New(io.Discard, "", 0)
	backend.Config.ErrorLog = quiet
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{w.certificate}}
	backend.StartTLS()
	w.t.Cleanup(backend.Close)
	if w.down {
		backend.Close()
	}
	at, _ := url.Parse(backend.URL)
	port, _ := strconv.Atoi(at.Port())
	w.reach(port)
	proxy := w.aggregate(at, quiet)
	host := httptest.NewServer(
		http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) { w.serve(response, request, proxy) }),
	)
	w.t.Cleanup(host.Close)
	return &rest.Config{Host: host.URL}
}

// reach directs the Service to a port, unless the test has set another one.
func (w *world) reach(port int) {
	if service, mine := w.spec["service"].(object); mine && service["port"] == 0 {
		service["port"] = port
	}
	set := func(path string, value any) {
		if _, said := w.answers[path]; !said {
			w.answers[path] = value
		}
	}
	set("/api/v1/namespaces/shop/services/api", object{
		"metadata": object{"name": "api", "namespace": "shop"},
		"spec": object{
			"type":      "ClusterIP",
			"clusterIP": "127.0.0.1",
			"selector":  object{"app": "shop"},
			"ports":     []object{{"name": "https", "port": port, "targetPort": 8443}},
		},
	})
	set("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", items(slice(port, true)))
}

func slice(port int, ready bool) object {
	return object{
		"metadata":    object{"name": "api-1"},
		"addressType": "IPv4", "ports": []object{{"name": "https", "port": port}},
		"endpoints": []object{{"addresses": []string{"127.0.0.1"}, "conditions": object{"ready": ready}}},
	}
}

// aggregate forwards requests and maintains the condition, as an API server does.
func (w *world) aggregate(at *url.URL, quiet *log.Logger) http.Handler {
	trusts := x509.NewCertPool()
	if bundle, ok := w.spec["caBundle"].([]byte); ok {
		trusts.AppendCertsFromPEM(bundle)
	}
	skip, _ := w.spec["insecureSkipTLSVerify"].(bool)
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: trusts, ServerName: dnsName, InsecureSkipVerify: skip, Time: func() time.Time { return time.Now().Add(w.clock) },
	}}
	w.t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) }, Transport: transport, ErrorLog: quiet, FlushInterval: -1,
		ErrorHandler: func(response http.ResponseWriter, _ *http.Request, err error) {
			failure(response, http.StatusServiceUnavailable, "error trying to reach service: "+err.Error())
		},
	}
	if w.condition != nil {
		return proxy
	}
	w.condition = object{"type": "Available", "status": "True", "reason": "Passed", "message": "all checks passed"}
	response, err := (&http.Client{Transport: transport}).Get(at.String() + apis)
	if err == nil {
		_ = response.Body.Close()
		if response.StatusCode >= 300 {
			err = fmt.Errorf("bad status from %s: %d", at, response.StatusCode)
		}
	}
	if err != nil {
		w.condition = object{
			"type":    "Available",
			"status":  "False",
			"reason":  "FailedDiscoveryCheck",
			"message": "failing or missing response from " + at.String() + ": " + err.Error(),
		}
	}
	return proxy
}

func failure(response http.ResponseWriter, code int, message string) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(code)
	reason := reasonOf(code)
	if code == http.StatusConflict {
		reason = metav1.StatusReasonAlreadyExists
	}
	_ = json.NewEncoder(response).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{
			Kind:       "Status",
			APIVersion: "v1",
		},
		Status:  metav1.StatusFailure,
		Code:    int32(code),
		Message: message,
		Reason:  reason,
	})
}

func (w *world) serve(response http.ResponseWriter, request *http.Request, proxy http.Handler) {
	path := request.URL.Path
	response.Header().Set("Date", time.Now().Add(w.clock).UTC().Format(http.TimeFormat))
	switch {
	case w.stranger:
		failure(response, http.StatusUnauthorized, "Unauthorized")
	case w.refused[path]:
		failure(response, http.StatusForbidden, "forbidden")
	case request.Method == http.MethodPost:
		w.create(response, request)
	case path == "/apis/apiregistration.k8s.io/v1/apiservices" && w.standalone:
		failure(response, http.StatusNotFound, "the server could not find the requested resource")
	case path == "/apis/apiregistration.k8s.io/v1/apiservices":
		own := w.apiService(name, w.spec)
		own["status"] = object{"conditions": []object{w.condition}}
		others, _ := w.answers["others"].([]object)
		response.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(response).Encode(items(append([]object{own}, others...)...))
	case w.answers[path] != nil:
		response.Header().Set("Content-Type", "application/json")
		if answer, ok := w.answers[path].(http.HandlerFunc); ok {
			answer(response, request)
			return
		}
		_ = json.NewEncoder(response).Encode(w.answers[path])
	case strings.HasPrefix(path, apis):
		if w.condition["status"] == "False" {
			http.Error(response, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(response, request)
	default:
		failure(response, http.StatusNotFound, path+" not found")
	}
}

// create answers access reviews, and records other created objects.
func (w *world) create(response http.ResponseWriter, request *http.Request) {
	response.Header().Set("Content-Type", "application/json")
	if !strings.HasSuffix(request.URL.Path, "/subjectaccessreviews") {
		if w.taken {
			failure(response, http.StatusConflict, "it exists")
			return
		}
		var o object
		_ = json.NewDecoder(request.Body).Decode(&o)
		w.mu.Lock()
		defer w.mu.Unlock()
		if request.URL.Query().Get("dryRun") == "" {
			w.created, w.lacks = append(w.created, o), map[string]bool{}
		}
		response.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(response).Encode(o)
		return
	}
	var review authorizationv1.SubjectAccessReview
	_ = json.NewDecoder(request.Body).Decode(&review)
	a := review.Spec.ResourceAttributes
	w.mu.Lock()
	review.Status.Allowed = review.Spec.User == "system:serviceaccount:shop:api" && !w.lacks[a.Verb+" "+a.Resource]
	w.mu.Unlock()
	response.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(response).Encode(review)
}
