package annextest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// double is a test whose end and failures are seen.
type double struct {
	name     string
	mu       sync.Mutex
	failed   bool
	said     []string
	cleanups []func()
}

func (d *double) Helper()          {}
func (d *double) Name() string     { return d.name }
func (d *double) Cleanup(f func()) { d.cleanups = append(d.cleanups, f) }
func (d *double) Failed() bool     { return d.failed }
func (d *double) Logf(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = append(d.said, fmt.Sprintf(format, args...))
}

func (d *double) Errorf(format string, args ...any) {
	d.Logf(format, args...)
	d.failed = true
}

func (d *double) Fatalf(format string, args ...any) {
	d.Errorf(format, args...)
	runtime.Goexit()
}

func (d *double) text() string { return strings.Join(d.said, "\n") }

// run runs a test as the package testing does, and returns it when it has ended.
func run(test func(d *double)) *double {
	d := &double{name: "TestX/a case"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(d.cleanups) {
				f()
			}
		}()
		test(d)
	}()
	<-done
	return d
}

var _ annextest.Test = (*testing.T)(nil)

type transport func(r *http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// stub is a client configuration whose server answers everything with 200 and an object of a new version.
func stub() *rest.Config {
	version := 0
	return &rest.Config{Host: "http://stub.example.com/prefix", Transport: transport(func(r *http.Request) (*http.Response, error) {
		version++
		body := fmt.Sprintf(`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w","resourceVersion":"%d"}}`, version)
		return &http.Response{
			StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
		}, nil
	})}
}

// send sends a request to the stub and returns the code of the answer, and its body.
func send(t *testing.T, config *rest.Config, method, path, body string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

type selection = annextest.Selection

const widgetsPath = "/apis/shop.example.com/v1/namespaces/default/widgets"

func TestSelection_countsRequests(t *testing.T) {
	const put, w, v = "PUT", widgetsPath + "/w", widgetsPath + "/v"
	all := func(n int) []string { return slices.Repeat([]string{put + " " + w}, n) }
	for name, c := range map[string]struct {
		verb, resource string
		narrow         func(s *selection) *selection
		requests       []string
		// want has a letter for each request: c for a conflict, - for the answer of the server.
		want string
	}{
		"all":             {"update", "widgets", nil, all(3), "ccc"},
		"first":           {"update", "widgets", func(s *selection) *selection { return s.First(2) }, all(4), "cc--"},
		"nth":             {"update", "widgets", func(s *selection) *selection { return s.Nth(2) }, all(4), "-c--"},
		"between":         {"update", "widgets", func(s *selection) *selection { return s.Between(2, 3) }, all(4), "-cc-"},
		"after":           {"update", "widgets", func(s *selection) *selection { return s.After(3) }, all(5), "---cc"},
		"the last counts": {"update", "widgets", func(s *selection) *selection { return s.First(1).Nth(2) }, all(3), "-c-"},
		"each object": {
			"update", "widgets",
			func(s *selection) *selection { return s.EachObject().First(1) },
			[]string{put + " " + w, put + " " + w, put + " " + v, put + " " + v}, "c-c-",
		},
		"verbs": {
			"update,patch,create", "widgets.shop.example.com", nil,
			[]string{put + " " + w, "PATCH " + w, "POST " + widgetsPath, "DELETE " + w, "GET " + w}, "ccc--",
		},
		"group": {"update", "widgets.example.com", func(s *selection) *selection { return s.Optional() }, all(1), "-"},
		"another subresource": {
			"update", "widgets/status", nil, []string{put + " " + w, put + " " + w + "/status"}, "-c",
		},
		"no subresource":  {"update", "widgets", nil, []string{put + " " + w + "/status", put + " " + w}, "-c"},
		"any subresource": {"update", "widgets/*", nil, []string{put + " " + w, put + " " + w + "/status", put + " " + w + "/scale"}, "-cc"},
		"every resource":  {"update", "*", nil, []string{put + " " + w, put + " " + w + "/status", put + " /api/v1/nodes/n", put + " /"}, "ccc-"},
		"status of any":   {"update", "*/status", nil, []string{put + " " + w, put + " /api/v1/nodes/n/status"}, "-c"},
		"name": {
			"update,delete", "widgets", func(s *selection) *selection { return s.Name("v") },
			[]string{put + " " + w, put + " " + v}, "-c",
		},
		"name in a body":    {"create", "widgets", func(s *selection) *selection { return s.Name("w") }, []string{"POST " + widgetsPath}, "c"},
		"namespace":         {"update", "widgets", func(s *selection) *selection { return s.Namespace("default") }, all(1), "c"},
		"another namespace": {"update", "widgets", func(s *selection) *selection { return s.Namespace("a").Optional() }, all(1), "-"},
		"certain":           {"update", "widgets", func(s *selection) *selection { return s.Chance(1) }, all(2), "cc"},
	} {
		t.Run(name, func(t *testing.T) {
			var faults annextest.Faults
			selection := faults.On(t, c.verb, c.resource)
			if c.narrow != nil {
				selection = c.narrow(selection)
			}
			fault := selection.Conflict()
			config := faults.Wrap(stub())
			got := ""
			for _, line := range c.requests {
				method, path, _ := strings.Cut(line, " ")
				code, body := send(t, config, method, path, `{"metadata": {"name": "w"}}`)
				switch code {
				case 409:
					got += "c"
				case 200:
					got += "-"
				default:
					t.Fatalf("%s: %d %s", line, code, body)
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if n := strings.Count(c.want, "c"); fault.Injected() != n {
				t.Errorf("%d injected, want %d", fault.Injected(), n)
			}
		})
	}
}

// A fault hides a request from the faults that follow, so that a test can name one after the other.
func TestFaults_severalInARow(t *testing.T) {
	var faults annextest.Faults
	faults.On(t, "update", "widgets").First(2).Conflict()
	faults.On(t, "update", "widgets").Delay(0)
	faults.On(t, "update", "widgets").First(1).InternalError()
	config := faults.Wrap(stub())
	var got []int
	for range 4 {
		code, _ := send(t, config, "PUT", widgetsPath+"/w", "{}")
		got = append(got, code)
	}
	if want := []int{409, 409, 500, 200}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestChance_sameSeed_sameRequestsOfEachObject(t *testing.T) {
	const n = 64
	conflicts := func(seed int64, order []string) map[string]string {
		faults := annextest.Faults{Seed: seed}
		faults.On(t, "update", "widgets").Chance(0.5).Conflict()
		config := faults.Wrap(stub())
		got := map[string]string{}
		for range n {
			for _, name := range order {
				code, _ := send(t, config, "PUT", widgetsPath+"/"+name, "{}")
				got[name] += fmt.Sprint(code, " ")
			}
		}
		return got
	}
	once, turned, other := conflicts(7, []string{"a", "b"}), conflicts(7, []string{"b", "a"}), conflicts(8, []string{"a", "b"})
	if once["a"] != turned["a"] || once["b"] != turned["b"] {
		t.Error("one seed selects other requests when those of two objects are in another order")
	}
	if once["a"] == other["a"] || once["a"] == once["b"] {
		t.Error("another seed or another object has the same conflicts")
	}
	if k := strings.Count(once["a"], "409"); k == 0 || k == n {
		t.Errorf("%d of %d requests have conflicts", k, n)
	}
}

func TestFaults_neverInjected_failTheTest(t *testing.T) {
	for name, c := range map[string]struct {
		test func(d *double)
		want string
	}{
		"no request": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "widgets").Conflict()
		}, "fault: update widgets: conflict: it was never injected, since no client of a configuration that Wrap returned sent a request"},
		"other requests": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "wodgets").Name("w").Conflict()
			send(t, faults.Wrap(stub()), "PUT", widgetsPath+"/w", "{}")
		}, "fault: update wodgets w: conflict: it was never injected, since no request was of this kind; " +
			"there were update widgets.shop.example.com (1)"},
		"too few": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "widgets").Nth(3).Conflict()
			send(t, faults.Wrap(stub()), "PUT", widgetsPath+"/w", "{}")
		}, "fault: update widgets: conflict: it was never injected, since there were 1 such requests only"},
		"no kind": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "widgets").First(1)
		}, "fault: update widgets: the selection has no kind: end it by a method such as Conflict"},
		"optional": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "widgets").Optional().Conflict()
		}, ""},
		"no luck": {func(d *double) {
			var faults annextest.Faults
			faults.On(d, "update", "widgets").Chance(math.SmallestNonzeroFloat64).Conflict()
			send(t, faults.Wrap(stub()), "PUT", widgetsPath+"/w", "{}")
		}, ""},
		"a test that failed": {func(d *double) {
			faults := annextest.Faults{Seed: 9}
			faults.On(d, "update", "widgets").Conflict()
			d.Errorf("broken")
		}, "broken\nfault: update widgets: conflict: met by 0 of 0 requests, seed 9"},
	} {
		t.Run(name, func(t *testing.T) {
			d := run(c.test)
			if d.text() != c.want || d.failed != (c.want != "") {
				t.Errorf("the test is failed: %v, for\n%s\nwant\n%s", d.failed, d.text(), c.want)
			}
		})
	}
}

func TestFaults_endWithTheirTest(t *testing.T) {
	var faults annextest.Faults
	config := faults.Wrap(stub())
	run(func(d *double) {
		faults.On(d, "update", "widgets").Conflict()
		if code, _ := send(t, config, "PUT", widgetsPath+"/w", "{}"); code != 409 {
			t.Errorf("%d in the test", code)
		}
	})
	if code, _ := send(t, config, "PUT", widgetsPath+"/w", "{}"); code != 200 {
		t.Errorf("%d after the test", code)
	}
}

func TestFaults_mistakes_failTheTest(t *testing.T) {
	on := func(d *double, verb, resource string) *annextest.Selection {
		return new(annextest.Faults).On(d, verb, resource)
	}
	for want, test := range map[string]func(d *double){
		`"put" is none of the verbs get, list`:   func(d *double) { on(d, "update,put", "widgets") },
		`"" is none of the verbs`:                func(d *double) { on(d, "", "widgets") },
		`the resource "" is not`:                 func(d *double) { on(d, "get", "") },
		`the resource "widgets/" is not`:         func(d *double) { on(d, "get", "widgets/") },
		`the resource "Widget" is not of lower`:  func(d *double) { on(d, "get", "Widget") },
		`requests 1 to 0 are none`:               func(d *double) { on(d, "get", "widgets").First(0) },
		`requests 0 to 0 are none`:               func(d *double) { on(d, "get", "widgets").Nth(0) },
		`requests 0 to 9223372036854775807 are`:  func(d *double) { on(d, "get", "widgets").After(-1) },
		`requests 3 to 2 are none`:               func(d *double) { on(d, "get", "widgets").Between(3, 2) },
		`0 is no probability`:                    func(d *double) { on(d, "get", "widgets").Chance(0) },
		`1.5 is no probability`:                  func(d *double) { on(d, "get", "widgets").Chance(1.5) },
		`NaN is no probability`:                  func(d *double) { on(d, "get", "widgets").Chance(math.NaN()) },
		`conflict is for create, update, patch`:  func(d *double) { on(d, "update,get", "widgets").Conflict() },
		`* widgets: conflict is for create`:      func(d *double) { on(d, "*", "widgets").Conflict() },
		`stale is for get, list alone`:           func(d *double) { on(d, "watch", "widgets").Stale() },
		`watch ended is for watch alone`:         func(d *double) { on(d, "list", "widgets").EndWatch(1) },
		`a watch cannot end after -1 events`:     func(d *double) { on(d, "watch", "widgets").CutWatch(-1) },
		`the delay cannot be -1s`:                func(d *double) { on(d, "get", "widgets").Delay(-time.Second) },
		`Retry-After cannot be -1s`:              func(d *double) { on(d, "get", "widgets").TooManyRequests(-time.Second) },
		`the error is nil`:                       func(d *double) { on(d, "get", "widgets").Error(nil) },
		`500: the selection has a kind already`:  func(d *double) { s := on(d, "update", "widgets"); s.Conflict(); s.InternalError() },
		`conflict is no fault of a webhook`:      func(d *double) { new(annextest.Faults).OnWebhook(d, "update", "widgets").Conflict() },
		`"patch" is none of the verbs create, u`: func(d *double) { new(annextest.Faults).OnWebhook(d, "patch", "widgets") },
	} {
		d := run(test)
		if first, _, _ := strings.Cut(d.text(), "\n"); !d.failed || !strings.Contains(first, want) {
			t.Errorf("the test is failed for %q, want %q", d.text(), want)
		}
	}
}

// namespaceClients are typed clients of a server by two media types.
func namespaceClients(t *testing.T, config *rest.Config) map[string]kubernetes.Interface {
	t.Helper()
	clients := map[string]kubernetes.Interface{}
	for name, media := range map[string]string{"JSON": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"} {
		config := rest.CopyConfig(config)
		config.ContentType, config.AcceptContentTypes = media, media
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		clients[name] = client
	}
	return clients
}

func TestFaults_errors_areThoseOfAServer(t *testing.T) {
	config := annextest.Start(t, shop())
	pods := schema.GroupResource{Resource: "pods"}
	var faults annextest.Faults
	for media, client := range namespaceClients(t, faults.Wrap(config)) {
		for name, c := range map[string]struct {
			inject func(s *selection) *annextest.Fault
			is     func(err error) bool
		}{
			"conflict":  {(*selection).Conflict, apierrors.IsConflict},
			"too many":  {func(s *selection) *annextest.Fault { return s.TooManyRequests(0) }, apierrors.IsTooManyRequests},
			"internal":  {(*selection).InternalError, apierrors.IsInternalError},
			"timeout":   {(*selection).Timeout, apierrors.IsTimeout},
			"forbidden": {func(s *selection) *annextest.Fault { return s.Error(apierrors.NewForbidden(pods, "p", nil)) }, apierrors.IsForbidden},
			"no network": {
				func(s *selection) *annextest.Fault { return s.Error(syscall.EPIPE) },
				func(err error) bool { return errors.Is(err, syscall.EPIPE) },
			},
			"lost": {(*selection).LoseAnswer, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		} {
			t.Run(media+"/"+name, func(t *testing.T) {
				c.inject(faults.On(t, "create", "namespaces").Name("a").First(1))
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
				_, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
				if err == nil || !c.is(err) {
					t.Errorf("the error is %v", err)
				}
				_, err = client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if there := apierrors.IsAlreadyExists(err); there != (name == "lost") {
					t.Errorf("the server has the namespace: %v (%v)", there, err)
				}
				if name == "lost" {
					deleteNamespace(t, config, "a")
				}
			})
		}
	}
}

// A client repeats a read after a broken connection by itself, and a write not.
func TestLoseAnswer_repeatedReads(t *testing.T) {
	var faults annextest.Faults
	client, err := dynamic.NewForConfig(faults.Wrap(stub()))
	if err != nil {
		t.Fatal(err)
	}
	api := client.Resource(widgetResource).Namespace("default")
	read := faults.On(t, "get", "widgets").First(1).LoseAnswer()
	widget, err := api.Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil || read.Injected() != 1 {
		t.Fatalf("the get is repeated after %d faults: %v", read.Injected(), err)
	}
	write := faults.On(t, "update", "widgets").First(1).LoseAnswer()
	if _, err := api.Update(t.Context(), widget, metav1.UpdateOptions{}); !errors.Is(err, io.ErrUnexpectedEOF) || write.Injected() != 1 {
		t.Errorf("the update ends after %d faults: %v", write.Injected(), err)
	}
}

// deleteNamespace returns when the namespace is gone.
func deleteNamespace(t *testing.T, config *rest.Config, name string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := client.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	t.Fatal("the watch ended before the namespace was gone")
}

func TestTooManyRequests_retryAfterIsForTheLibrary(t *testing.T) {
	var faults annextest.Faults
	faults.On(t, "update", "widgets").TooManyRequests(1500 * time.Millisecond)
	client, err := rest.HTTPClientFor(faults.Wrap(stub()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "PUT", "http://stub.example.com/prefix"+widgetsPath+"/w", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 429 || response.Header.Get("Retry-After") != "2" {
		t.Errorf("%s, Retry-After %q", response.Status, response.Header.Get("Retry-After"))
	}
}

func TestHang_endsWithTheRequestOrTheTest(t *testing.T) {
	var faults annextest.Faults
	client, err := dynamic.NewForConfig(faults.Wrap(stub()))
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context) error {
		_, err := client.Resource(widgetResource).Namespace("default").Get(ctx, "w", metav1.GetOptions{})
		return err
	}
	for name, inject := range map[string]func(s *selection) *annextest.Fault{
		"hang":  (*selection).Hang,
		"delay": func(s *selection) *annextest.Fault { return s.Delay(time.Hour) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		run(func(d *double) {
			fault := inject(faults.On(d, "get", "widgets"))
			go func() { errs <- get(ctx) }()
			testwait.Until(t, "the first request meets the fault", func() bool { return fault.Injected() == 1 })
			cancel()
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want the end of the request", name, err)
			}
			go func() { errs <- get(t.Context()) }()
			testwait.Until(t, "the second request meets the fault", func() bool { return fault.Injected() == 2 })
		})
		if err := <-errs; (err != nil) != (name == "hang") {
			t.Errorf("%s: %v at the end of the test", name, err)
		}
	}
}

var widgetResource = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}

func TestStale_repeatsAnEarlierAnswer(t *testing.T) {
	var faults annextest.Faults
	faults.On(t, "get,list", "widgets").Between(2, 3).Stale()
	config := faults.Wrap(stub())
	versions := ""
	for range 6 {
		_, body := send(t, config, "GET", widgetsPath+"/w", "")
		_, version, _ := strings.Cut(body, `"resourceVersion":"`)
		versions += version[:min(len(version), 1)]
	}
	// The first answer makes the others possible, and is none of them.
	if versions != "122234" {
		t.Errorf("the versions of six answers are %s, want 122234", versions)
	}
	// Another request has no earlier answer.
	if _, body := send(t, config, "GET", widgetsPath+"/v", ""); !strings.Contains(body, `"5"`) {
		t.Errorf("another object is %s", body)
	}
}

// A server of one group has the namespace default alone. The watch has to have more objects than its fault lets through: a
// watch that is cut breaks in the event after them.
func TestWatch_interrupted(t *testing.T) {
	config := annextest.Start(t, shop())
	server, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := server.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var faults annextest.Faults
	for media, client := range namespaceClients(t, faults.Wrap(config)) {
		for name, c := range map[string]struct {
			inject func(s *selection) *annextest.Fault
			want   string
		}{
			"ended":         {func(s *selection) *annextest.Fault { return s.EndWatch(2) }, "ADDED ADDED"},
			"ended at once": {func(s *selection) *annextest.Fault { return s.EndWatch(0) }, ""},
			"cut":           {func(s *selection) *annextest.Fault { return s.CutWatch(1) }, "ADDED"},
			"expired":       {func(s *selection) *annextest.Fault { return s.ExpireWatch(1) }, "ADDED ERROR"},
		} {
			t.Run(media+"/"+name, func(t *testing.T) {
				c.inject(faults.On(t, "watch", "namespaces").First(1))
				w, err := client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
				if err != nil {
					t.Fatal(err)
				}
				defer w.Stop()
				var got []string
				for e := range w.ResultChan() {
					if e.Type == watch.Error && !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
						t.Errorf("the error is %v", e.Object)
					}
					got = append(got, string(e.Type))
				}
				if strings.Join(got, " ") != c.want {
					t.Errorf("events %v, want %s", got, c.want)
				}
			})
		}
	}
}

func TestWebhook_faults(t *testing.T) {
	const review = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"UPDATE",` +
		`"resource":{"group":"shop.example.com","version":"v1","resource":"widgets"},"namespace":"default","name":"w"}}`
	var reached atomic.Int64
	var faults annextest.Faults
	server := httptest.NewServer(faults.Webhook(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || len(body) == 0 {
			t.Errorf("the webhook reads %q: %v", body, err)
		}
		reached.Add(1)
	})))
	defer server.Close()
	post := func(ctx context.Context, body string) (int, error) {
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	broken := faults.OnWebhook(t, "update", "widgets").Name("w").First(1).InternalError()
	slow := faults.OnWebhook(t, "*", "*").First(1).Delay(0)
	for i, want := range []struct{ code, reached int64 }{{500, 0}, {200, 1}, {200, 2}} {
		if code, err := post(t.Context(), review); int64(code) != want.code || reached.Load() != want.reached {
			t.Errorf("review %d: %d, %v; the webhook was reached %d times", i+1, code, err, reached.Load())
		}
	}
	if broken.Injected() != 1 || slow.Injected() != 1 {
		t.Errorf("%d and %d faults, want one each", broken.Injected(), slow.Injected())
	}
	if code, err := post(t.Context(), `{"kind":"ConversionReview"}`); code != 200 || reached.Load() != 3 {
		t.Errorf("a conversion: %d, %v", code, err)
	}

	silent := faults.OnWebhook(t, "update", "widgets.shop.example.com").Namespace("default").Hang()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := post(ctx, review)
		done <- err
	}()
	testwait.Until(t, "the review meets the fault", func() bool { return silent.Injected() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || reached.Load() != 3 {
		t.Errorf("a webhook that hangs: %v; it was reached %d times", err, reached.Load())
	}
}

// A client that repeats its update after a conflict gets through.
func TestConflict_retriedByTheClient(t *testing.T) {
	var faults annextest.Faults
	client, err := dynamic.NewForConfig(faults.Wrap(annextest.Start(t, shop())))
	if err != nil {
		t.Fatal(err)
	}
	api := client.Resource(widgetResource).Namespace("default")
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
	}}
	if widget, err = api.Create(t.Context(), widget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	faults.On(t, "update", "widgets").First(2).Conflict()
	for n := 1; ; n++ {
		_, err := api.Update(t.Context(), widget, metav1.UpdateOptions{})
		if n < 3 && apierrors.IsConflict(err) {
			continue
		}
		if n != 3 || err != nil {
			t.Errorf("update %d: %v, want success in the third", n, err)
		}
		return
	}
}
