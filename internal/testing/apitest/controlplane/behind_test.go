package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	spdyclient "k8s.io/client-go/transport/spdy"
	websocketclient "k8s.io/client-go/transport/websocket"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/identity/certs"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// startFront runs a control plane, and returns a function that stops it before the end of the test.
func startFront(t *testing.T, options annex.Options) (config *rest.Config, stop func()) {
	t.Helper()
	if options.Storage == nil {
		options.Storage = memory.Storage()
	}
	if options.Listen == "" {
		options.Listen = "127.0.0.1:0"
	}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, cluster(), options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the control plane failed: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("the control plane ended: %v", err)
	}
	if config, err = instance.ClientConfig(); err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config, stop
}

// relay forwards connections to a server, and can cut them.
type relay struct {
	port int

	mu    sync.Mutex
	conns []net.Conn
}

func relayTo(t *testing.T, port int) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{port: listener.Addr().(*net.TCPAddr).Port}
	t.Cleanup(func() {
		listener.Close()
		r.cut()
	})
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					way[0].Close()
				}()
			}
		}
	}()
	return r
}

// cut closes all connections; clients can open new ones.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
}

// silent accepts connections and never responds. It returns its port.
func silent(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func available(t *testing.T, front *rest.Config) {
	t.Helper()
	condition(t, front, "v1."+typedGroup, apiregistrationv1.ConditionTrue, "Passed", "")
}

// createCrate waits until the aggregated server accepts it.
func createCrate(t *testing.T, crates dynamic.ResourceInterface, name string) {
	t.Helper()
	testwait.NoError(t, "crate "+name, func(ctx context.Context) error {
		_, err := crates.Create(ctx, crateNamed(name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func TestAggregation_watchList(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	register(t, front, serveBehind(t, front, crateServer(), 0).port, crateVersion)
	available(t, front)
	crates := dynamic.NewForConfigOrDie(front).Resource(crateResource).Namespace("default")
	createCrate(t, crates, "one")
	watching, err := crates.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	next := func(want watch.EventType) *unstructured.Unstructured {
		t.Helper()
		e := <-watching.ResultChan()
		obj, ok := e.Object.(*unstructured.Unstructured)
		if e.Type != want || !ok {
			t.Fatalf("the watch tells of %v, want %s", e, want)
		}
		return obj
	}
	if one := next(watch.Added); one.GetName() != "one" {
		t.Errorf("%v", one)
	}
	if bookmark := next(
		watch.Bookmark,
	); bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" ||
		bookmark.GetResourceVersion() == "" {
		t.Errorf("%v", bookmark)
	}
	createCrate(t, crates, "two")
	if two := next(watch.Added); two.GetName() != "two" {
		t.Errorf("%v", two)
	}
	if err := crates.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Deleted)
}

// echoing sends back all data from a WebSocket or SPDY connection.
func echoing(context.Context, *annex.ConnectRequest[markedv1.Crate, annex.NoOptions]) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wsstream.IsWebSocketRequest(r) {
			_, channels, err := wsstream.NewConn(wsstream.NewDefaultChannelProtocols([]wsstream.ChannelType{wsstream.ReadWriteChannel})).Open(w, r)
			if err != nil {
				return // the client gets the error
			}
			_, _ = io.Copy(channels[0], channels[0])
			return
		}
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
			go func() { _, _ = io.Copy(stream, stream) }()
			return nil
		})
		if conn != nil {
			<-conn.CloseChan()
		}
	}), nil
}

func TestAggregation_connections(t *testing.T) {
	t.Parallel()
	// No connection may be closed by this timeout.
	front, stop := startFront(t, annex.Options{ShutdownTimeout: time.Hour})
	server := crateServer()
	server.Groups[0].Kinds[0] = annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API).
		Subresources(annex.Connect("exec", echoing).Methods(http.MethodGet, http.MethodPost))
	b := serveBehind(t, front, server, 0)
	register(t, front, b.port, crateVersion)
	available(t, front)
	crates := dynamic.NewForConfigOrDie(front).Resource(crateResource).Namespace("default")
	createCrate(t, crates, "one")
	path := "/apis/" + crateVersion.String() + "/namespaces/default/crates/one/exec"

	around, holder, err := websocketclient.RoundTripperFor(front)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := websocketclient.Negotiate(around, holder, req, "channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	const binary = 2
	for _, want := range []string{"\x00one", "\x00two"} {
		if err := socket.WriteMessage(binary, []byte(want)); err != nil {
			t.Fatal(err)
		}
		// An empty message opens the channel.
		got := []byte{0}
		for err == nil && string(got) == "\x00" {
			_, got, err = socket.ReadMessage()
		}
		if err != nil || string(got) != want {
			t.Fatalf("by WebSocket: %q, %v", got, err)
		}
	}

	around, upgrader, err := spdyclient.RoundTripperFor(front)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(front.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	spdied, _, err := spdyclient.NewDialerForStreaming(upgrader, &http.Client{Transport: around}, http.MethodPost, at).Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer spdied.Close()
	stream, err := spdied.CreateStream(http.Header{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stream, "three"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("three"))
	if _, err := io.ReadFull(stream, got); err != nil || string(got) != "three" {
		t.Fatalf("by SPDY: %q, %v", got, err)
	}

	// A rejection by the aggregated server reaches the client.
	refused, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.Host+strings.Replace(path, "one/exec", "none/exec", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, holder, err := websocketclient.RoundTripperFor(front); err != nil {
		t.Fatal(err)
	} else if _, err := websocketclient.Negotiate(again, holder, refused, "channel.k8s.io"); err == nil ||
		!strings.Contains(err.Error(), `"none" not found`) {
		t.Errorf("of a crate that is not there: %v", err)
	}

	// The front server stops, and its connections and watches end in order.
	watching, err := crates.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	stop()
	for e := range watching.ResultChan() {
		if e.Type != watch.Added {
			t.Errorf("the watch tells of %v", e)
		}
	}
	if _, got, err := socket.ReadMessage(); err == nil {
		t.Errorf("the WebSocket is open, and says %q", got)
	}
	<-spdied.CloseChan()
}

// Clients see the cut and the restart as those of any server: watches end, and informers find the changes that they
// missed. The test is not parallel, because it listens again on a port that it has released, which another test
// could get meanwhile.
func TestAggregation_informersSurviveCuts(t *testing.T) {
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	way := relayTo(t, b.port)
	register(t, front, way.port, crateVersion)
	available(t, front)
	client := dynamic.NewForConfigOrDie(front)
	crates := client.Resource(crateResource).Namespace("default")

	watching, err := crates.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, crateResource, "default", 0, cache.Indexers{}, nil).Informer()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { informer.RunWithContext(ctx) })
	knows := func(want ...string) {
		t.Helper()
		testwait.NoError(t, fmt.Sprintf("the informer knows %v", want), func(context.Context) error {
			got := []string{}
			for _, key := range informer.GetStore().ListKeys() {
				got = append(got, strings.TrimPrefix(key, "default/"))
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fmt.Errorf("it knows %v", got)
			}
			return nil
		})
	}
	createCrate(t, crates, "a")
	knows("a")

	way.cut()
	for range watching.ResultChan() {
		continue
	}
	createCrate(t, crates, "b")
	knows("a", "b")

	// Another server replaces it, without its objects.
	b.stop()
	serveBehind(t, front, crateServer(), b.port)
	createCrate(t, crates, "c")
	knows("c")
}

// It is not parallel, because it has deadlines of seconds, which the load of other tests could exceed.
func TestAggregation_deadServers(t *testing.T) {
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	available(t, front)
	dead := map[schema.GroupVersion]int{
		{Group: "refused.example.com", Version: "v1"}: 1,
		{Group: "silent.example.com", Version: "v1"}:  silent(t),
	}
	for v, port := range dead {
		registerAt(t, front, port, v)
	}
	kubernetesClient := kubernetes.NewForConfigOrDie(front)
	if _, err := kubernetesClient.CoreV1().
		Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// Both have been asked for a second at most at this point, and the server waits for the silent one for 5
	// seconds.
	hurried := rest.CopyConfig(front)
	hurried.Timeout = 4 * time.Second
	client := kubernetes.NewForConfigOrDie(hurried)
	get := func(path, accept string) error {
		return client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).Do(t.Context()).Error()
	}
	const merged = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	testwait.NoError(t, "the crates are in discovery", func(context.Context) error {
		for _, path := range []string{"/apis", "/api", "/readyz", "/livez", "/openapi/v3"} {
			for _, accept := range []string{"application/json", merged} {
				if err := get(path, accept); err != nil && (accept == "application/json" || strings.HasPrefix(path, "/api")) {
					t.Fatalf("%s: %v", path, err)
				}
			}
		}
		groups, _, failed, err := client.Discovery().(*discovery.DiscoveryClient).GroupsAndMaybeResources()
		if err != nil {
			t.Fatal(err)
		}
		for v := range dead {
			if failed[v] == nil || !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == v.Group }) {
				t.Fatalf("failed are %v", failed)
			}
			if err := get("/apis/"+v.String(), "application/json"); !apierrors.IsServiceUnavailable(err) {
				t.Fatalf("of a dead server: %v", err)
			}
		}
		if failed[crateVersion] != nil {
			return fmt.Errorf("failed are %v", failed)
		}
		return nil
	})
	if _, err := client.CoreV1().ConfigMaps("doomed").Create(t.Context(), configMap("a"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	createCrate(t, dynamic.NewForConfigOrDie(hurried).Resource(crateResource).Namespace("doomed"), "a")

	condition(
		t,
		front,
		"v1.silent.example.com",
		apiregistrationv1.ConditionFalse,
		"FailedDiscoveryCheck",
		"https://127.0.0.1:"+strconv.Itoa(dead[schema.GroupVersion{Group: "silent.example.com", Version: "v1"}])+"/apis/silent.example.com/v1",
	)
	condition(t, front, "v1.refused.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", "connection refused")

	// Resources that can be listed are deleted; the namespace stays because of the unreachable ones.
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "doomed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	const says = "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: " +
		"refused.example.com/v1: stale GroupVersion discovery: refused.example.com/v1, silent.example.com/v1: stale GroupVersion discovery: " +
		"silent.example.com/v1"
	crates := dynamic.NewForConfigOrDie(front).Resource(crateResource)
	testwait.NoError(t, "the conditions of the namespace", func(ctx context.Context) error {
		ns, err := client.CoreV1().Namespaces().Get(ctx, "doomed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(
			ns.Status.Conditions,
			func(c corev1.NamespaceCondition) bool { return c.Type == corev1.NamespaceDeletionDiscoveryFailure },
		)
		if i < 0 || ns.Status.Conditions[i].Status != corev1.ConditionTrue || ns.Status.Conditions[i].Reason != "DiscoveryFailed" ||
			ns.Status.Conditions[i].Message != says {
			return fmt.Errorf("%+v", ns.Status.Conditions)
		}
		if left, err := crates.Namespace("doomed").List(ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%v, %w", left, err)
		}
		return nil
	})
	for v := range dead {
		if err := aggregator.NewForConfigOrDie(front).
			ApiregistrationV1().
			APIServices().
			Delete(t.Context(), v.Version+"."+v.Group, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testwait.NoError(t, "the end of the namespace", func(ctx context.Context) error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, "doomed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// It is not parallel, because it compares metrics, which are global to the process.
func TestAggregation_metrics(t *testing.T) {
	front := annextest.Start(t, cluster())
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	available(t, front)
	name := "v1." + typedGroup
	tell := func(want, not string) {
		t.Helper()
		client := kubernetes.NewForConfigOrDie(front).Discovery().RESTClient()
		testwait.NoError(t, "metrics with "+want, func(ctx context.Context) error {
			body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
			if err == nil && (!strings.Contains(string(body), want+"\n") || not != "" && strings.Contains(string(body), not)) {
				err = fmt.Errorf("%d bytes without it, or with %s", len(body), not)
			}
			return err
		})
	}
	const gauge, total = `aggregator_unavailable_apiservice{name="`, `aggregator_unavailable_apiservice_total{name="`
	tell(gauge+name+`"} 0`, total+name)
	tell(gauge+`v1.coordination.k8s.io"} 0`, "")
	b.stop()
	look(t, front, name)
	tell(gauge+name+`"} 1`, "")
	tell(total+name+`",reason="FailedDiscoveryCheck"} 1`, "")
	if err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tell(gauge+`v1.coordination.k8s.io"} 0`, gauge+name)
}

// tlsServer serves TLS with the names of a Service in the namespace default, and returns its port and CA bundle.
func tlsServer(t *testing.T, name string, handler http.Handler) (port int, bundle []byte) {
	t.Helper()
	bundle, key, err := certs.NewServing(time.Now(), []string{name + ".default.svc"}, time.Hour, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(bundle, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port, bundle
}

// It is not parallel, because it has deadlines of seconds, which the load of other tests could exceed.
func TestAggregation_deadline(t *testing.T) {
	front := annextest.StartWith(t, cluster(), annex.Options{Storage: memory.Storage(), RequestTimeout: time.Second})
	v := schema.GroupVersion{Group: "slow.example.com", Version: "v1"}
	ended := make(chan struct{})
	port, bundle := tlsServer(t, "behind", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/"+v.String() {
			select {
			case <-r.Context().Done():
			case <-ended:
			}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"slow.example.com/v1","resources":[]}`)
	}))
	t.Cleanup(func() { close(ended) })
	named(t, front, "behind")
	s := remoteService(v, port)
	s.Spec.InsecureSkipTLSVerify, s.Spec.CABundle = false, bundle
	if _, err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition(t, front, s.Name, apiregistrationv1.ConditionTrue, "Passed", "")
	client := kubernetes.NewForConfigOrDie(front).Discovery().RESTClient()
	testwait.NoError(t, "the deadline", func(ctx context.Context) error {
		err := client.Get().AbsPath("/apis", v.Group, v.Version, "things").MaxRetries(0).Do(ctx).Error()
		if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "request did not complete within the allotted timeout") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
}

func TestAggregation_cookies(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	v := schema.GroupVersion{Group: "curious.example.com", Version: "v1"}
	port, bundle := tlsServer(t, "behind", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/"+v.String() {
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"curious.example.com/v1","resources":[]}`)
			return
		}
		w.Header().Add("Set-Cookie", "__Host-annex-session=theirs; Path=/; Secure")
		w.Header().Add("Set-Cookie", "own=1")
		fmt.Fprintf(w, "%q", r.Header["Cookie"])
	}))
	named(t, front, "behind")
	s := remoteService(v, port)
	s.Spec.InsecureSkipTLSVerify, s.Spec.CABundle = false, bundle
	if _, err := aggregator.NewForConfigOrDie(front).
		ApiregistrationV1().
		APIServices().
		Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	condition(t, front, s.Name, apiregistrationv1.ConditionTrue, "Passed", "")
	client, err := rest.HTTPClientFor(front)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.Host+"/apis/"+v.String()+"/things", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Cookie", "a=b; __Host-annex-session=stolen; annex-session=stolen")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != `["a=b"]` || !slices.Equal(response.Header["Set-Cookie"], []string{"own=1"}) {
		t.Errorf("%s %s, set are %q: %v", response.Status, body, response.Header["Set-Cookie"], err)
	}
}

func TestAggregation_openAPIV2(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	register(t, front, serveBehind(t, front, crateServer(), 0).port, crateVersion)
	const document = `{"swagger":"2.0","info":{"title":"counted","version":"1"},
		"paths":{"/apis/counted.example.com/v1/things":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.counted.v1.Thing"}}}}},
			"/healthz":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.counted.Health"}}}}}},
		"definitions":{"com.example.counted.v1.Thing":{"type":"object","x-kubernetes-group-version-kind":[{"group":"counted.example.com","version":"v1","kind":"Thing"}]},
			"com.example.counted.Health":{"type":"object"}}}`
	v := schema.GroupVersion{Group: "counted.example.com", Version: "v1"}
	var asked atomic.Int64
	port, bundle := tlsServer(t, "behind", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/openapi/v2":
			asked.Add(1)
			_, _ = io.WriteString(w, document)
		case "/apis/" + v.String():
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"counted.example.com/v1","resources":[]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	s := remoteService(v, port)
	s.Spec.InsecureSkipTLSVerify, s.Spec.CABundle = false, bundle
	services := aggregator.NewForConfigOrDie(front).ApiregistrationV1().APIServices()
	if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	available(t, front)
	condition(t, front, s.Name, apiregistrationv1.ConditionTrue, "Passed", "")
	if n := asked.Load(); n != 0 {
		t.Errorf("its document was asked for %d times before it was wanted", n)
	}
	client := kubernetes.NewForConfigOrDie(front).Discovery()
	has := func(names ...string) []string {
		t.Helper()
		document, err := client.OpenAPISchema() // as protobuf
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, definition := range document.Definitions.AdditionalProperties {
			for _, name := range names {
				if strings.HasSuffix(definition.Name, name) {
					found = append(found, name)
				}
			}
		}
		slices.Sort(found)
		return found
	}
	const crate, thing, health, own = ".marked.v1.Crate", "counted.v1.Thing", "counted.Health", "api.core.v1.ConfigMap"
	testwait.NoError(t, "both are in the document", func(context.Context) error {
		if found := has(crate, thing, health, own); !slices.Equal(found, []string{crate, own, thing}) {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	n := asked.Load()
	has()
	if again := asked.Load(); n < 1 || again != n {
		t.Errorf("it was asked %d times, and then %d", n, again)
	}
	text, err := client.RESTClient().Get().AbsPath("/openapi/v2").SetHeader("Accept", "application/json").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(text), `"/apis/`+crateVersion.String()+`/namespaces/{namespace}/crates"`) ||
		!strings.Contains(string(text), `"/api/v1/namespaces/{namespace}/configmaps"`) {
		t.Errorf("the document in JSON, %d bytes: %v", len(text), err)
	}
	if err := services.Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the end of its part", func(context.Context) error {
		if found := has(crate, thing, own); !slices.Equal(found, []string{crate, own}) {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
}

func TestWebhook_byService(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	named(t, front, "hooks")
	review := func(says string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reviewed(w, r, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: says + " at " + r.URL.Path}}
			})
		})
	}
	port, bundle := tlsServer(t, "hooks", review("no"))
	client, none := kubernetes.NewForConfigOrDie(front), admissionregistrationv1.SideEffectClassNone
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "never"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			{
				Name:                    "never.example.com",
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"},
				Rules:                   []admissionregistrationv1.RuleWithOperations{configMaps},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{
					Service: &admissionregistrationv1.ServiceReference{
						Namespace: "default",
						Name:      "hooks",
						Path:      new("/review"),
						Port:      new(int32(port)),
					},
					CABundle: bundle,
				},
			},
		},
	}
	hook, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		testwait.NoError(t, want, func(ctx context.Context) error {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("a"), metav1.CreateOptions{DryRun: []string{"All"}})
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	}
	refused(`admission webhook "never.example.com" denied the request: no at /review`)

	// If the Service is gone, the error names the Service.
	if err := client.CoreV1().Services("default").Delete(t.Context(), "hooks", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	other, bundle := tlsServer(t, "hooks", review("never"))
	hook.Webhooks[0].ClientConfig.Service.Port, hook.Webhooks[0].ClientConfig.CABundle = new(int32(other)), bundle
	if _, err := client.AdmissionregistrationV1().
		ValidatingWebhookConfigurations().
		Update(t.Context(), hook, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused(
		`failed calling webhook "never.example.com": failed to call webhook: Post "https://hooks.default.svc:` + strconv.Itoa(
			other,
		) + `/review?timeout=10s": service "hooks" not found`,
	)
	named(t, front, "hooks")
	refused("denied the request: never at /review")
}

func TestConversion_byService(t *testing.T) {
	t.Parallel()
	front := annextest.Start(t, cluster())
	named(t, front, "conversions")
	stock := newConverter(t)
	port, bundle := tlsServer(t, "conversions", stock.server.Config.Handler)
	definition := widgets(sizeAndColor)
	convertedBy(stock, definition)
	definition.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{
		Service:  &apiextensionsv1.ServiceReference{Namespace: "default", Name: "conversions", Path: new("/convert"), Port: new(int32(port))},
		CABundle: bundle,
	}
	clientsOf(front).define(t, definition)
	all := dynamic.NewForConfigOrDie(front)
	first := all.Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	second := all.Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v2", Resource: "widgets"}).Namespace("default")
	made := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stable.example.com/v1",
		"kind":       "Widget",
		"metadata":   map[string]any{"name": "w"},
		"spec":       map[string]any{"size": int64(3)},
	}}
	testwait.NoError(t, "a widget of v1", func(ctx context.Context) error {
		_, err := first.Create(ctx, made, metav1.CreateOptions{})
		return err
	})
	w, err := second.Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, err := unstructured.NestedInt64(w.Object, "spec", "dimensions", "size"); err != nil || size != 3 {
		t.Errorf("%v, %v", w.Object, err)
	}
}
