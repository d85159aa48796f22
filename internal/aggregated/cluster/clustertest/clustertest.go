// Package clustertest contains an in-process cluster for tests of aggregated servers. It implements the parts of a
// kube-apiserver that they use, with permissions that tests can revoke and grant. Tests against a real cluster are in
// a separate module.
package clustertest

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	t       testing.TB
	address string
	server  *httptest.Server
	serving tls.Certificate
	own     *Authority
	// RequestHeaderCA and ClientCA issue the certificates that the cluster accepts.
	RequestHeaderCA, ClientCA *Authority

	writing    sync.Mutex
	reviewing  sync.RWMutex
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced with every event
	log        []event
	forbidden  map[string]bool
	tokens     map[string]authenticationv1.UserInfo
	rejected   map[string]string
	allow      func(authorizationv1.SubjectAccessReviewSpec) bool
	reviews    map[string]int
	watches    map[int]func()
	aggregated *httputil.ReverseProxy
	date       func() time.Time
}

type event struct {
	revision  int64
	kind      watch.EventType
	resource  schema.GroupResource
	namespace string
	name      string
	object    json.RawMessage
}

// Start runs a cluster until the end of the test. It permits everything, has the namespace default, and publishes its
// authentication configuration in the usual ConfigMap.
func Start(t testing.TB) *Cluster {
	t.Helper()
	return StartAt(t, time.Now())
}

// StartAt is like Start, for a cluster whose clock starts at now, and whose certificates are issued then.
func StartAt(t testing.TB, now time.Time) *Cluster {
	t.Helper()
	ahead := time.Until(now)
	h := &Cluster{
		t:               t,
		own:             NewAuthority(t, "cluster", now),
		RequestHeaderCA: NewAuthority(t, "request-header", now),
		ClientCA:        NewAuthority(t, "client", now),
		changed:         make(chan struct{}),
		forbidden:       map[string]bool{},
		tokens:          map[string]authenticationv1.UserInfo{},
		rejected:        map[string]string{},
		allow:           func(authorizationv1.SubjectAccessReviewSpec) bool { return true },
		reviews:         map[string]int{},
		watches:         map[int]func(){},
		date:            func() time.Time { return time.Now().Add(ahead) },
	}
	h.serving = h.own.Issue(t, "127.0.0.1")
	h.Put(
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1"},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		},
	)
	h.Configure(nil)
	h.Up()
	t.Cleanup(h.Down)
	return h
}

// Configure writes the ConfigMap extension-apiserver-authentication, after applying change to the default data.
func (h *Cluster) Configure(change func(data map[string]string)) {
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data: map[string]string{
			"client-ca-file":                     string(h.ClientCA.PEM),
			"requestheader-client-ca-file":       string(h.RequestHeaderCA.PEM),
			"requestheader-allowed-names":        `["front-proxy-client"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-uid-headers":          `["X-Remote-Uid"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
	if change != nil {
		change(config.Data)
	}
	h.Put(config)
}

// Up starts the listener, after Down on the same port as before.
func (h *Cluster) Up() {
	h.t.Helper()
	address := h.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		h.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close()
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{h.serving}}
	server.Config.ErrorLog = nil
	server.EnableHTTP2 = true
	server.StartTLS()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.server, h.address = server, listener.Addr().String()
}

// Down stops the listener: connections are refused.
func (h *Cluster) Down() {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server != nil {
		h.endWatches()
		server.CloseClientConnections()
		server.Close()
	}
}

// endWatches ends all watches.
func (h *Cluster) endWatches() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, end := range h.watches {
		end()
	}
}

// Kubeconfig writes a kubeconfig for a service account of the cluster, and returns its path.
func (h *Cluster) Kubeconfig() string {
	h.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: "https://" + h.address, CertificateAuthorityData: h.own.PEM}
	config.AuthInfos["server"] = &clientcmdapi.AuthInfo{Token: "server"}
	config.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "server"}
	config.CurrentContext = "cluster"
	path := filepath.Join(h.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// Forbid revokes the permission for resources, such as namespaces, and ends their watches.
func (h *Cluster) Forbid(resources ...string) {
	h.mu.Lock()
	for _, r := range resources {
		h.forbidden[r] = true
	}
	h.mu.Unlock()
	h.endWatches()
}

// Permit grants the permission for resources again.
func (h *Cluster) Permit(resources ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range resources {
		delete(h.forbidden, r)
	}
}

// Know adds a token with its user.
func (h *Cluster) Know(token string, info authenticationv1.UserInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens[token] = info
}

// Reject adds a token that is rejected for a reason.
func (h *Cluster) Reject(token, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rejected[token] = reason
}

// Hold delays the answers to token reviews until release is called.
func (h *Cluster) Hold() (release func()) {
	h.reviewing.Lock()
	return h.reviewing.Unlock
}

// Allow sets the function that decides about callers. Without it, everything is allowed.
func (h *Cluster) Allow(allow func(authorizationv1.SubjectAccessReviewSpec) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.allow = allow
}

// Reviews returns the number of reviews of tokens or of callers, by resource. Reviews without a token or caller are
// not counted, nor are those about a Lease.
func (h *Cluster) Reviews(resource string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reviews[resource]
}

// Aggregate makes the cluster forward all requests that it does not serve itself to a server.
func (h *Cluster) Aggregate(server string) {
	h.t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		h.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization")
			r.Out.Header.Set("X-Remote-User", "aggregator")
			r.Out.Header.Set("X-Remote-Group", "system:masters")
		},
		Transport: h.FrontProxy(),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.aggregated = proxy
}

// FrontProxy returns the transport with which the cluster forwards requests.
func (h *Cluster) FrontProxy() *http.Transport {
	return h.RequestHeaderCA.Transport(h.t, "front-proxy-client")
}

// Put creates or replaces an object.
func (h *Cluster) Put(object runtime.Object) { h.record("", object) }

// Delete deletes an object.
func (h *Cluster) Delete(object runtime.Object) { h.record(watch.Deleted, object) }

func (h *Cluster) record(kind watch.EventType, object runtime.Object) {
	h.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		h.t.Fatal(err)
	}
	object = object.DeepCopyObject()
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	m, err := meta.Accessor(object)
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := event{
		revision:  int64(len(h.log) + 1),
		kind:      kind,
		resource:  resource.GroupResource(),
		namespace: m.GetNamespace(),
		name:      m.GetName(),
	}
	m.SetResourceVersion(strconv.FormatInt(e.revision, 10))
	if e.object, err = json.Marshal(object); err != nil {
		h.t.Fatal(err)
	}
	if kind == "" {
		e.kind = watch.Added
		if _, ok := h.current()[e.key()]; ok {
			e.kind = watch.Modified
		}
	}
	h.log = append(h.log, e)
	close(h.changed)
	h.changed = make(chan struct{})
}

func (e event) key() string { return e.resource.String() + "/" + e.namespace + "/" + e.name }

// current returns the newest event of every existing object.
func (h *Cluster) current() map[string]event {
	now := map[string]event{}
	for _, e := range h.log {
		if e.kind == watch.Deleted {
			delete(now, e.key())
		} else {
			now[e.key()] = e
		}
	}
	return now
}

var paths = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

func (h *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", h.date().UTC().Format(http.TimeFormat))
	info, err := paths.NewRequestInfo(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	forbidden, aggregated := h.forbidden[info.Resource], h.aggregated
	if info.Resource == "leases" && info.Verb == "get" {
		h.reviews[info.Resource]++
	}
	h.mu.Unlock()
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	switch {
	case r.Header.Get("Authorization") != "Bearer server":
		refuse(w, apierrors.NewUnauthorized("Unauthorized"))
	case !info.IsResourceRequest || !strings.HasSuffix(info.APIGroup, ".k8s.io") && info.APIGroup != "":
		if aggregated == nil {
			refuse(w, apierrors.NewNotFound(resource, info.Name))
			return
		}
		aggregated.ServeHTTP(w, r)
	case forbidden:
		refuse(w, apierrors.NewForbidden(resource, info.Name, fmt.Errorf("the server may not %s it", info.Verb)))
	case info.Resource == "tokenreviews":
		h.reviewToken(w, r)
	case info.Resource == "subjectaccessreviews":
		h.reviewAccess(w, r)
	case info.Resource == "leases" && (info.Verb == "create" || info.Verb == "update"):
		h.write(w, r, info, resource)
	case info.Verb == "get":
		h.get(w, info, resource)
	case info.Verb == "list":
		h.list(w, info, resource)
	case info.Verb == "watch":
		h.watch(w, r, info, resource)
	default:
		refuse(w, apierrors.NewMethodNotSupported(resource, info.Verb))
	}
}

func refuse(w http.ResponseWriter, err apierrors.APIStatus) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	answer(w, int(status.Code), status)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (h *Cluster) reviewToken(w http.ResponseWriter, r *http.Request) {
	review := authenticationv1.TokenReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Spec.Token == "" {
		refuse(w, apierrors.NewBadRequest("token is required"))
		return
	}
	h.reviewing.RLock()
	defer h.reviewing.RUnlock()
	h.mu.Lock()
	h.reviews["tokenreviews"]++
	info, ok := h.tokens[review.Spec.Token]
	reason := h.rejected[review.Spec.Token]
	h.mu.Unlock()
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: info, Error: reason}
	answer(w, http.StatusCreated, review)
}

func (h *Cluster) reviewAccess(w http.ResponseWriter, r *http.Request) {
	review := authorizationv1.SubjectAccessReview{}
	if err := json.NewDecoder(r.Body).
		Decode(&review); err != nil ||
		review.Spec.ResourceAttributes == nil && review.Spec.NonResourceAttributes == nil {
		refuse(w, apierrors.NewInvalid(schema.GroupKind{Kind: "SubjectAccessReview"}, "", nil))
		return
	}
	h.mu.Lock()
	h.reviews["subjectaccessreviews"]++
	allow := h.allow
	h.mu.Unlock()
	review.Status.Allowed = allow(review.Spec)
	answer(w, http.StatusCreated, review)
}

func (h *Cluster) get(w http.ResponseWriter, info *request.RequestInfo, resource schema.GroupResource) {
	h.mu.Lock()
	e, ok := h.current()[event{resource: resource, namespace: namespaceOf(info), name: info.Name}.key()]
	h.mu.Unlock()
	if !ok {
		refuse(w, apierrors.NewNotFound(resource, info.Name))
		return
	}
	answer(w, http.StatusOK, e.object)
}

// write updates leases, for which exactly one of several concurrent writers must succeed.
func (h *Cluster) write(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, resource schema.GroupResource) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	lease := object.(*coordinationv1.Lease)
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	old, ok := h.current()[event{resource: resource, namespace: info.Namespace, name: lease.Name}.key()]
	h.mu.Unlock()
	if info.Verb == "create" && ok || info.Verb == "update" && (!ok || lease.ResourceVersion != strconv.FormatInt(old.revision, 10)) {
		refuse(w, apierrors.NewConflict(resource, lease.Name, errors.New("it has changed")))
		return
	}
	h.Put(lease)
	info.Name = lease.Name
	h.get(w, info, resource)
}

// namespaceOf returns the namespace of a request; empty for namespaces themselves.
func namespaceOf(info *request.RequestInfo) string {
	if info.Resource == "namespaces" {
		return ""
	}
	return info.Namespace
}

func (h *Cluster) selected(e event, info *request.RequestInfo, resource schema.GroupResource) bool {
	return e.resource == resource && e.namespace == namespaceOf(info) && (info.Name == "" || info.Name == e.name)
}

func (h *Cluster) list(w http.ResponseWriter, info *request.RequestInfo, resource schema.GroupResource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	items := []json.RawMessage{}
	for _, e := range h.current() {
		if h.selected(e, info, resource) {
			items = append(items, e.object)
		}
	}
	answer(w, http.StatusOK, map[string]any{
		"apiVersion": schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}.String(), "kind": "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(h.log))}, "items": items,
	})
}

func (h *Cluster) watch(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, resource schema.GroupResource) {
	ended := make(chan struct{})
	h.mu.Lock()
	id := len(h.watches)
	for h.watches[id] != nil {
		id++
	}
	h.watches[id] = sync.OnceFunc(func() { close(ended) })
	next, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, e := range h.current() {
			if h.selected(e, info, resource) {
				_ = encoder.Encode(map[string]any{"type": watch.Added, "object": e.object})
			}
		}
		next = len(h.log)
		_ = encoder.Encode(map[string]any{"type": watch.Bookmark, "object": h.bookmark(info)})
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.watches, id)
		h.mu.Unlock()
	}()
	for {
		w.(http.Flusher).Flush()
		h.mu.Lock()
		for _, e := range h.log[next:] {
			if h.selected(e, info, resource) {
				_ = encoder.Encode(map[string]any{"type": e.kind, "object": e.object})
			}
		}
		next = len(h.log)
		changed := h.changed
		h.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// bookmark returns the bookmark at the end of a watch's initial events.
func (h *Cluster) bookmark(info *request.RequestInfo) any {
	kind := ""
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if resource, _ := meta.UnsafeGuessKindToResource(gvk); gvk.GroupVersion() == gv && resource.Resource == info.Resource {
			kind = gvk.Kind
		}
	}
	return map[string]any{"apiVersion": gv.String(), "kind": kind, "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(len(h.log)), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
}

// File writes data to a file of the test and returns its path.
func File(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Read reads a response to its end.
func Read(t testing.TB, response *http.Response) string {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Plain returns the transport of a client without a certificate. It accepts every server.
func (h *Cluster) Plain() *http.Transport {
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	h.t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// Serve runs a handler, such as a webhook, until the end of the test.
func (h *Cluster) Serve(handler http.Handler) (url string, ca []byte) {
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{h.own.Issue(h.t, "127.0.0.1")}}
	server.StartTLS()
	h.t.Cleanup(server.Close)
	return server.URL, h.own.PEM
}
