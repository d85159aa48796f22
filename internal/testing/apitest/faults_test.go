package apitest_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

// The tests in this file expose a server to trouble: clients that stall, hooks that hang or panic, disks that fill
// up, and programs that start and end servers in any order.

// within runs f and fails the test if that takes longer than patience.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not end within %s", what, patience)
	}
}

// raw sends the beginning of a request, on a connection of its own, and waits until the first bytes of a response
// have arrived.
func (c *client) raw(format string, args ...any) net.Conn {
	c.t.Helper()
	config, err := rest.TLSConfigFor(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.config.Host, "https://"), config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, strings.ReplaceAll(format, "\n", "\r\n"), args...); err != nil {
		c.t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// unfinished is a request whose body does not arrive, although the server waits.
const unfinished = "POST %s HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 99\nExpect: 100-continue\n\n{"

func only(kinds ...annex.Kind) annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: kinds}}}
}

func TestRequestTimeout_missingBody(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	// HTTP/2: the connection stays open.
	body, never := io.Pipe()
	defer never.Close()
	response, err := c.http.Post(c.config.Host+widgetsPath+"?timeout=50ms", jsonType, body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	late := &answer{t, response.Proto, response.StatusCode, response.Header, text}
	late.refused(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "body did not arrive in time")

	// HTTP/1.1: it ends.
	within(t, "the connection", func() {
		text, err := io.ReadAll(c.raw(unfinished, widgetsPath+"?timeout=50ms"))
		if err != nil || !bytes.HasPrefix(text, []byte("HTTP/1.1 504 ")) || !bytes.Contains(text, []byte("body did not arrive in time")) {
			t.Errorf("got %q, %v", text, err)
		}
	})
}

func TestShutdown_cutsOffHangingRequests(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{})
	defer close(release)
	server := only(widgets().Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
		if r.Name == "hangs" {
			close(entered)
			<-release
		}
		return nil
	}))
	instance, stop := run(t, server, annex.Options{Storage: memory.Storage(), ShutdownTimeout: 100 * time.Millisecond})
	c := clientOf(t, instance)

	// A watch that is not read, with more events than the network buffers. It delays no writer.
	deaf := c.raw("GET %s?watch=1 HTTP/1.1\nHost: x\n\n", widgetsPath)
	large := spec(fields{"options": fields{"padding": strings.Repeat("x", largest())}})
	for i := range 8 {
		c.create(fmt.Sprint("large", i), large)
	}
	// A body that does not arrive, and a hook that does not return.
	mute := c.raw(unfinished, widgetsPath)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		if response, err := c.http.Post(c.config.Host+widgetsPath, jsonType, strings.NewReader(`{"metadata":{"name":"hangs"}}`)); err == nil {
			defer response.Body.Close()
			t.Errorf("a request whose hook hangs: %s", response.Status)
		}
	}()
	<-entered

	within(t, "the shutdown", func() {
		if err := stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	within(t, "cutting off", func() {
		<-cut
		for _, conn := range []net.Conn{deaf, mute} {
			_, _ = io.Copy(io.Discard, conn)
		}
	})
}

func TestShutdown_announcesDrain(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	server := only(widgets().Admit(func(context.Context, annex.Request[v1.Widget]) error {
		close(entered)
		<-release
		return nil
	}))
	instance, stop := run(t, server, annex.Options{Storage: memory.Storage()})
	c := clientOf(t, instance)
	answered, ended := make(chan *answer), make(chan error)
	go func() { answered <- c.post(widgetsPath, widget("slow")) }()
	<-entered
	go func() { ended <- stop() }()

	testwait.Until(t, "unready", func() bool { return c.get("/readyz").code != http.StatusOK })
	if text := string(c.get("/readyz").raw); !strings.Contains(text, "[-]stopping failed: the server is shutting down\n") {
		t.Errorf("/readyz: %s", text)
	}
	var refused *answer
	testwait.Until(t, "refused", func() bool { refused = c.get(widgetsPath); return refused.code != http.StatusOK })
	refused.refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "shutting down")
	if after := refused.header.Get("Retry-After"); after == "" {
		t.Error("no header says when to try again")
	}
	c.get(widgetsPath+"?watch=1").refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	c.get("/livez").want(http.StatusOK)

	close(release)
	(<-answered).want(http.StatusCreated)
	within(t, "the shutdown", func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestShutdown_manyWatches(t *testing.T) {
	t.Parallel()
	const many = 300
	instance, stop := run(t, shop(), annex.Options{Storage: memory.Storage()})
	c := clientOf(t, instance)
	begun, seen, ended := make(chan struct{}, many), make(chan struct{}, many), make(chan error, many)
	watch := func() error {
		response, err := c.http.Get(c.config.Host + widgetsPath + "?watch=1")
		begun <- struct{}{}
		if err != nil {
			seen <- struct{}{}
			return err
		}
		defer response.Body.Close()
		stream := bufio.NewReader(response.Body)
		first, err := stream.ReadBytes('\n')
		seen <- struct{}{}
		if err != nil || !bytes.Contains(first, []byte(`"type":"ADDED"`)) {
			return fmt.Errorf("first %s: %w", first, err)
		}
		if rest, err := io.ReadAll(stream); err != nil || len(rest) > 0 {
			return fmt.Errorf("then %s: %w", rest, err)
		}
		return nil
	}
	for range many {
		go func() { ended <- watch() }()
	}
	for range many {
		<-begun
	}
	c.create("w")
	for range many {
		<-seen
	}
	within(t, "the shutdown", func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	within(t, "the watches", func() {
		for range many {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestHooks_panics_endOnlyTheirRequest(t *testing.T) {
	t.Parallel()
	panics := func(w *v1.Widget, where string) {
		if w.Annotations["panic"] == where {
			panic("a mistake in " + where)
		}
	}
	c := startKind(t, annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, func(hub *v1.Widget, out *v1beta1.Widget) error {
			panics(hub, "FromHub")
			return v1beta1.WidgetFromHub(hub, out)
		}).Validate(func(_ context.Context, w *v1beta1.Widget) field.ErrorList {
			if w.Annotations["panic"] == "Validate of a version" {
				panic("a mistake")
			}
			return nil
		})).
		Validate(func(_ context.Context, w *v1.Widget) field.ErrorList { panics(w, "Validate"); return nil }).
		PrepareForCreate(func(_ context.Context, w *v1.Widget) { panics(w, "PrepareForCreate") }).
		Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error { panics(r.Object, "Mutate"); return nil }).
		Admit(func(_ context.Context, r annex.Request[v1.Widget]) error { panics(r.Object, "Admit"); return nil }).
		Columns(annex.Column[v1.Widget]{Name: "Size", Value: func(w *v1.Widget) any { panics(w, "Value"); return w.Spec.Size }}))
	marked := func(where string) map[string]any {
		return metadata(fields{"annotations": fields{"panic": where}})
	}
	panicked := func(a *answer) {
		t.Helper()
		a.refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "caused a panic in the server")
	}
	for _, where := range []string{"Validate", "PrepareForCreate", "Mutate", "Admit"} {
		panicked(c.post(widgetsPath, widget("w", marked(where))))
	}
	panicked(c.post(widgetsBetaPath, widgetBeta("w", marked("Validate of a version"))))
	c.get(widgetsPath+"/w").refused(http.StatusNotFound, metav1.StatusReasonNotFound)

	// An object whose display panics is stored, and shown in other ways.
	watch := c.watch(widgetsPath + "?watch=1")
	c.create("value", marked("Value"))
	panicked(c.get(widgetsPath+"/value", "Accept", tableType))
	c.create("from-hub", marked("FromHub"))
	panicked(c.get(widgetsBetaPath + "/from-hub"))
	c.get(widgetsPath).want(http.StatusOK)
	watch.want("ADDED value", "ADDED from-hub")
	c.get("/readyz").want(http.StatusOK)
}

func TestInstance_lifecycle(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	run := func(i *annex.Instance) error { return i.Run(canceled, nil) }
	notAgain := func(i *annex.Instance) error {
		if err := run(i); err == nil || !strings.Contains(err.Error(), "create a new one") {
			return fmt.Errorf("run again: %v", err)
		}
		return nil
	}
	for name, life := range map[string][]func(*annex.Instance) error{
		"closed":               {(*annex.Instance).Close, (*annex.Instance).Close},
		"closed and run":       {(*annex.Instance).Close, notAgain, (*annex.Instance).Close},
		"run and closed":       {run, (*annex.Instance).Close},
		"run twice":            {run, notAgain},
		"run without a chance": {run},
	} {
		t.Run(name, func(t *testing.T) {
			options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
			instance, err := annex.New(t.Context(), shop(), options)
			if err != nil {
				t.Fatal(err)
			}
			for i, step := range life {
				within(t, fmt.Sprint("step ", i), func() {
					if err := step(instance); err != nil {
						t.Errorf("step %d: %v", i, err)
					}
				})
			}
			// Whatever happened, the directory is free.
			instance, err = annex.New(t.Context(), shop(), options)
			if err != nil {
				t.Fatal(err)
			}
			if err := instance.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDataDir_secondServer_isRejected(t *testing.T) {
	t.Parallel()
	for _, storage := range []annex.Storage{memory.Storage(), embedded.Dir("")} {
		t.Run(storage.Name(), func(t *testing.T) {
			options := annex.Options{Storage: storage, DataDir: filepath.Join(t.TempDir(), "data")}
			instance, _ := run(t, shop(), options)
			c := clientOf(t, instance)
			before, err := os.ReadFile(instance.Kubeconfig())
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range []annex.Storage{memory.Storage(), embedded.Dir("")} {
				_, err := annex.New(t.Context(), shop(), annex.Options{Storage: other, DataDir: options.DataDir})
				want := "in use by another"
				if storage.Name() == "embedded" && other.Name() == "memory" {
					want = "are in the storage embedded, not in memory" // as the directory itself shows
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("another one on %s: %v", other.Name(), err)
				}
			}
			c.create("w")
			if after, err := os.ReadFile(instance.Kubeconfig()); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the kubeconfig has changed: %v", err)
			}
		})
	}
}

// TestNew_failure_leavesNothing is not parallel: it counts.
func TestNew_failure_leavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{"garbage": "this is: [no kubeconfig", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(dir, "data"), Listen: anyPort}
	first, err := annex.New(t.Context(), shop(), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	kubeconfig := first.Kubeconfig()
	before, opened := goroutines(), openFiles(t)
	for name, fault := range map[string]func(*annex.Server, *annex.Options){
		"a hook that cannot be made": func(s *annex.Server, _ *annex.Options) {
			*s = only(widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
				_, err := annex.ListerFor[v1.Shelf](env)
				return nil, err
			}))
		},
		"a port that is taken":          func(_ *annex.Server, o *annex.Options) { o.Listen = taken.Addr().String() },
		"another port that is taken":    func(_ *annex.Server, o *annex.Options) { o.ListenInsecure = taken.Addr().String() },
		"an address of another machine": func(_ *annex.Server, o *annex.Options) { o.Listen = "192.0.2.1:0" },
		"a certificate without a key":   func(_ *annex.Server, o *annex.Options) { o.TLSCertFile = filepath.Join(dir, "empty") },
		"an empty certificate": func(_ *annex.Server, o *annex.Options) {
			o.TLSCertFile, o.TLSPrivateKeyFile = filepath.Join(dir, "empty"), filepath.Join(dir, "empty")
		},
		"authorities that are none": func(_ *annex.Server, o *annex.Options) {
			o.TLSCertFile, o.TLSPrivateKeyFile = filepath.Join(dir, "data", "cert", "server.crt"), filepath.Join(dir, "data", "cert", "server.key")
			o.ClientCAFile = filepath.Join(dir, "garbage")
		},
		"tokens that are none": func(_ *annex.Server, o *annex.Options) {
			o.ClientCAFile = filepath.Join(dir, "data", "cert", "ca.crt")
			o.TokenAuthFile = filepath.Join(dir, "garbage")
		},
		"a kubeconfig that is none": func(_ *annex.Server, o *annex.Options) {
			if err := os.Rename(filepath.Join(dir, "garbage"), kubeconfig); err != nil {
				t.Fatal(err)
			}
		},
	} {
		server, faulty := shop(), options
		fault(&server, &faulty)
		_, err := annex.New(t.Context(), server, faulty)
		if usage := (*annex.ConfigError)(nil); !errors.As(err, &usage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(kubeconfig); err != nil {
		t.Fatal(err)
	}
	second, err := annex.New(t.Context(), shop(), options)
	if err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	var left []string
	testwait.Until(t, "everything to end", func() bool {
		left = more(goroutines(), before)
		return len(left) == 0 && openFiles(t) <= opened
	})
}

// openFiles counts the process's open files, where the system shows them.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	return len(files)
}

// TestServers_leaveNothing is not parallel: it measures the process.
func TestServers_leaveNothing(t *testing.T) {
	lives := func(n int) {
		for range n {
			ctx, cancel := context.WithCancel(t.Context())
			instance, err := annex.New(ctx, shop(), annex.Options{Storage: memory.Storage(), ListenInsecure: anyPort})
			if err != nil {
				t.Fatal(err)
			}
			if err := instance.Run(ctx, cancel); err != nil {
				t.Fatal(err)
			}
		}
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // the first one only runs finalizers
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	lives(5) // everything that a process creates once exists now
	const n, each = 30, 32 << 10
	before, files, bytes := goroutines(), openFiles(t), heap()
	lives(n)
	testwait.Until(t, "everything to end", func() bool {
		return len(more(goroutines(), before)) == 0 && openFiles(t) <= files && heap()-bytes < n*each
	})
	t.Logf("heap: %d bytes more for each of %d servers", (heap()-bytes)/n, n)
}

func TestHandler_insideAnotherServer(t *testing.T) {
	t.Parallel()
	instance, err := annex.New(t.Context(), shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/own", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "mine") })
	mux.Handle("/", instance.Handler())
	outer := httptest.NewServer(mux)
	defer outer.Close()
	c := connect(t, &rest.Config{Host: outer.URL, BearerToken: "root"})

	// Before it runs, it is not ready and still guarded.
	if a := c.get("/readyz"); a.code != http.StatusInternalServerError {
		t.Errorf("before it runs: %d %s", a.code, a.raw)
	}
	c.stranger("").get(widgetsPath).want(http.StatusUnauthorized)

	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready
	if instance.URL() != "" || instance.InsecureURL() != "" || instance.Kubeconfig() != "" {
		t.Errorf("it listens on %q %q, kubeconfig %q", instance.URL(), instance.InsecureURL(), instance.Kubeconfig())
	}
	c.create("w")
	watch := c.watch(widgetsPath + "?watch=1")
	watch.want("ADDED w")
	if own := c.get("/own"); string(own.raw) != "mine" {
		t.Errorf("/own: %s", own.raw)
	}
	inner := clientOf(t, instance)
	inner.get(widgetsPath + "/w").want(http.StatusOK)

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	watch.ends()
	c.get(widgetsPath).refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	c.get("/own").want(http.StatusOK)
}

// tokenFile has jane, who has no rights, with the token secret, and joe, who has all rights, with the token root.
func tokenFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("secret,jane,42,staff\nroot,joe,43,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestHooks_emptyCache_failsClosed(t *testing.T) {
	t.Parallel()
	asked := make(chan error, 1)
	instance, err := annex.New(t.Context(), only(
		widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			shelves, err := annex.ListerFor[v1.Shelf](env)
			if err != nil {
				return nil, err
			}
			return func(context.Context, annex.Request[v1.Widget]) error {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				_, err := shelves.Get(ctx, "", "s")
				asked <- err
				return err
			}, nil
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer instance.Close()
	outer := httptest.NewServer(instance.Handler())
	defer outer.Close()
	c := connect(t, &rest.Config{Host: outer.URL, BearerToken: "root"})
	c.namespace("default")
	c.post(widgetsPath, widget("w")).
		refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "waiting for the cache of shelves.shop.example.com")
	if err := <-asked; !apierrors.IsServiceUnavailable(err) {
		t.Errorf("the hook got %v", err)
	}
	if got := c.get(widgetsPath).names(); len(got) != 0 {
		t.Errorf("stored: %v", got)
	}
}

// readOnly fails the test unless the server reports that it is read-only, with the reason, and still answers reads
// and watches.
func readOnly(t *testing.T, c *client, reason string) {
	t.Helper()
	c.post(widgetsPath, widget("later")).refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "takes no writes")
	c.delete(widgetsPath+"/first", nil).refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	if a := c.get(
		"/readyz?verbose",
	); a.code != http.StatusInternalServerError ||
		!strings.Contains(string(a.raw), "[-]storage failed: "+reason+"\n") {
		t.Errorf("/readyz: %d\n%s", a.code, a.raw)
	}
	c.get("/livez").want(http.StatusOK)
	c.widget("first")
	c.watch(widgetsPath + "?watch=1&fieldSelector=metadata.name%3Dfirst").want("ADDED first")
}

func TestReadOnly_removedStorage(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
	instance, _ := run(t, shop(), options)
	c := clientOf(t, instance)
	c.create("first")
	if err := os.Rename(filepath.Join(options.DataDir, "storage"), filepath.Join(options.DataDir, "moved")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the server has noticed", func() bool { return c.get("/readyz").code != http.StatusOK })
	readOnly(t, c, "read-only, its directory was removed: restore it")
	if err := os.Mkdir(filepath.Join(options.DataDir, "storage"), 0o700); err != nil {
		t.Fatal(err)
	}
	readOnly(t, c, "read-only, its directory was removed: restore it")
	if err := errors.Join(
		os.Remove(filepath.Join(options.DataDir, "storage")),
		os.Rename(filepath.Join(options.DataDir, "moved"), filepath.Join(options.DataDir, "storage")),
	); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "ready again", func() bool { return c.get("/readyz").code == http.StatusOK })
	c.create("again")
}

func TestReadOnly_removedLockFiles(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(t.TempDir(), "data")}
	instance, _ := run(t, shop(), options)
	c := clientOf(t, instance)
	c.create("first")
	if err := errors.Join(
		os.Remove(filepath.Join(options.DataDir, "lock")),
		os.Remove(filepath.Join(options.DataDir, "storage", "LOCK")),
	); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the server has noticed", func() bool { return c.get("/readyz").code != http.StatusOK })
	readOnly(t, c, "read-only, its lock file was removed and another server may be using its directory: stop all of them and start one")
}

// TestFullDisk_losesNothing needs a file system of its own, which only root can mount.
func TestFullDisk_losesNothing(t *testing.T) {
	t.Parallel()
	about(t, embedded.Name)
	disk := smallDisk(t, 16<<20)
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(disk, "data")}
	full := filepath.Join(disk, "full")

	// At the first start.
	fill(t, full)
	if _, err := annex.New(t.Context(), shop(), options); !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("with a full disk: %v", err)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}

	// While serving, again and again.
	instance, stop := run(t, shop(), options)
	c := clientOf(t, instance)
	first := c.create("first")
	watch := c.watch(widgetsPath + "?watch=1&resourceVersion=" + first.ResourceVersion)
	acknowledged := []string{"first"}
	for range 3 {
		fill(t, full)
		written, unknown := c.writeUntilFull(len(acknowledged))
		acknowledged = append(acknowledged, written...)
		for _, name := range written {
			watch.want("ADDED " + name)
		}
		readOnly(t, c, "read-only, the disk is full: recovers by itself when there is space")
		a := c.post(widgetsPath, widget("later"))
		s := a.refused(
			http.StatusServiceUnavailable,
			metav1.StatusReasonServiceUnavailable,
			"no space left on device (recovers by itself when there is space)",
		)
		if a.header.Get("Retry-After") != "1" || strings.Count(s.Message, options.DataDir) != 1 {
			t.Errorf("try again after %q: %s", a.header.Get("Retry-After"), s.Message)
		}

		// With space again.
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "ready again", func() bool { return c.get("/readyz").code == http.StatusOK })
		again := fmt.Sprint("again", len(acknowledged))
		c.create(again)
		acknowledged = append(acknowledged, again)
		// The write of unknown outcome came first, if it was stored.
		e := watch.next()
		if e.name() == unknown {
			e = watch.next()
		}
		if e.String() != "ADDED "+again {
			t.Fatalf("the watch goes on with %s, want %s", e, again)
		}
	}
	if !strings.Contains(string(c.get("/metrics").raw), `annex_storage_recoveries_total{storage="embedded"} 3`) {
		t.Error("the metrics do not say that it recovered 3 times")
	}
	for _, name := range acknowledged {
		c.widget(name)
	}

	// Stopped while the disk is full.
	fill(t, full)
	written, _ := c.writeUntilFull(len(acknowledged))
	if err := stop(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the server ended with %v", err)
	}
	watch.want(added(written)...)
	watch.ends()
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	instance, _ = run(t, shop(), options)
	c = clientOf(t, instance)
	for _, name := range append(acknowledged, written...) {
		c.widget(name)
	}
	c.create("later")
}

func added(names []string) []string {
	var events []string
	for _, name := range names {
		events = append(events, "ADDED "+name)
	}
	return events
}

// writeUntilFull creates widgets of 1 MiB until that fails. It returns the acknowledged ones, and the one with an
// unknown outcome.
func (c *client) writeUntilFull(from int) (acknowledged []string, unknown string) {
	c.t.Helper()
	padding := spec(fields{"options": fields{"padding": strings.Repeat("x", 1<<20)}})
	for n := range 100 {
		name := fmt.Sprint("w", from+n)
		a := c.post(widgetsPath, widget(name, padding))
		if a.code != http.StatusCreated {
			a.refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "unknown", "no space left")
			return acknowledged, name
		}
		acknowledged = append(acknowledged, name)
	}
	c.t.Fatal("the disk was never full")
	return nil, ""
}

// fill writes a file until no space is left.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err := file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

func TestAccess_seeminglyOpenPaths_areClosed(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	anonymous := c.stranger("")
	for _, path := range []string{"/healthz/../apis", "/healthz/%2e%2e/apis", "/livez%2f..%2fmetrics", "/readyz/..;/metrics", "//healthz",
		"/HEALTHZ", "/version/x", "/apis;/healthz", "/flagz", "/statusz", "/logs/", "/debug/pprof/"} {
		if a := anonymous.get(path); a.code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", path, a.code, a.raw)
		}
	}
	for _, method := range []string{http.MethodOptions, http.MethodTrace, http.MethodConnect, "PROPFIND"} {
		if a := anonymous.do(method, "/version", nil); a.code != http.StatusUnauthorized {
			t.Errorf("%s: %d", method, a.code)
		}
	}
	for _, path := range []string{"/healthz/nothing", "/livez/", "/readyz//storage"} {
		if a := anonymous.get(path).want(http.StatusNotFound); strings.Contains(string(a.raw), "/apis") {
			t.Errorf("%s tells strangers what is served: %s", path, a.raw)
		}
	}
	anonymous.get(widgetsPath+"?access_token=root&token=root").refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	cross := anonymous.get("/version", "Origin", "https://elsewhere.example.com", "Host", "elsewhere.example.com")
	for name := range cross.header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("cross-origin requests get %s", name)
		}
	}
	// A browser may pass a token as a WebSocket's protocol.
	socket := []string{
		"Connection",
		"Upgrade",
		"Upgrade",
		"websocket",
		"Sec-Websocket-Version",
		"13",
		"Sec-Websocket-Key",
		"AAAAAAAAAAAAAAAAAAAAAA==",
		"Sec-Websocket-Protocol",
	}
	bearer := func(token string) string {
		return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)) + ", v4.channel.k8s.io"
	}
	h1 := anonymous.http1()
	h1.get(widgetsPath+"/w", append(socket, bearer("wrong"))...).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	h1.get(widgetsPath+"/w", append(socket, bearer("secret"))...).refused(http.StatusForbidden, metav1.StatusReasonForbidden)
	h1.get(widgetsPath+"/w", append(socket, bearer("root"))...).refused(http.StatusNotFound, metav1.StatusReasonNotFound)
}

// http1 returns the client, restricted to HTTP/1.1.
func (c *client) http1() *client {
	c.t.Helper()
	config := rest.CopyConfig(c.config)
	config.NextProtos = []string{"http/1.1"}
	return connect(c.t, config)
}

func TestServingCertificate_notValidNow_isRejected(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: memory.Storage(), DataDir: filepath.Join(t.TempDir(), "data")}
	c := startWith(t, shop(), options)
	authority, err := tls.LoadX509KeyPair(filepath.Join(options.DataDir, "cert", "ca.crt"), filepath.Join(options.DataDir, "cert", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, test := range map[string]struct {
		from, to time.Time
		usage    x509.ExtKeyUsage
		want     int
	}{
		"valid":         {now.Add(-time.Hour), now.Add(time.Hour), x509.ExtKeyUsageClientAuth, http.StatusOK},
		"expired":       {now.Add(-2 * time.Hour), now.Add(-time.Hour), x509.ExtKeyUsageClientAuth, http.StatusUnauthorized},
		"of the future": {now.Add(time.Hour), now.Add(2 * time.Hour), x509.ExtKeyUsageClientAuth, http.StatusUnauthorized},
		"a server's":    {now.Add(-time.Hour), now.Add(time.Hour), x509.ExtKeyUsageServerAuth, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
				SerialNumber: big.NewInt(1),
				Subject:      pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}},
				NotBefore:    test.from,
				NotAfter:     test.to,
				KeyUsage:     x509.KeyUsageDigitalSignature,
				ExtKeyUsage:  []x509.ExtKeyUsage{test.usage},
			}, authority.Leaf, key.Public(), authority.PrivateKey)
			if err != nil {
				t.Fatal(err)
			}
			config := rest.CopyConfig(c.config)
			config.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
			connect(t, config).get(widgetsPath).want(test.want)
		})
	}
}

func TestURL_isUsable(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		t.Run(address, func(t *testing.T) {
			options := annex.Options{
				Storage:        memory.Storage(),
				Listen:         net.JoinHostPort(address, "0"),
				ListenInsecure: net.JoinHostPort(address, "0"),
				DataDir:        filepath.Join(t.TempDir(), "data"),
			}
			if l, err := net.Listen("tcp", net.JoinHostPort(address, "0")); err != nil {
				t.Skip(err)
			} else {
				l.Close()
			}
			instance, _ := run(t, shop(), options)
			for _, u := range []string{instance.URL(), instance.InsecureURL()} {
				parsed, err := url.Parse(u)
				if err != nil {
					t.Fatal(err)
				}
				if ip := net.ParseIP(parsed.Hostname()); ip == nil || ip.IsUnspecified() {
					t.Errorf("%s is no address that a client can connect to", u)
				}
			}
			connect(t, &rest.Config{Host: instance.InsecureURL()}).get("/readyz").want(http.StatusOK)
			c := clientOf(t, instance)
			c.get("/readyz").want(http.StatusOK)
			config, err := clientcmd.BuildConfigFromFlags("", instance.Kubeconfig())
			if err != nil {
				t.Fatal(err)
			}
			connect(t, config).get(widgetsPath).want(http.StatusOK)
			if got := c.get("/api").object()["serverAddressByClientCIDRs"]; !strings.Contains(
				fmt.Sprint(got),
				strings.TrimPrefix(instance.URL(), "https://"),
			) {
				t.Errorf("discovery says %v", got)
			}
		})
	}
}

func TestListerFor_afterStart_fails(t *testing.T) {
	t.Parallel()
	var kept *annex.Env
	start(t, only(
		widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
			kept = env
			_, err := annex.ListerFor[v1.Widget](env)
			return func(context.Context, annex.Request[v1.Widget]) error { return nil }, err
		}),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	))
	if _, err := annex.ListerFor[v1.Widget](kept); err != nil {
		t.Errorf("the same as before: %v", err)
	}
	if _, err := annex.ListerFor[v1.Shelf](
		kept,
	); err == nil ||
		!strings.Contains(err.Error(), "v1.Shelf: the cache of shelves.shop.example.com cannot be created") {
		t.Errorf("another: %v", err)
	}
}

// Otherwise strangers could reset streams on one connection for ever.
func TestConnections_unauthenticatedCallers_areClosed(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for _, who := range []struct {
		c    *client
		kept bool
	}{{c, true}, {c.stranger(""), false}} {
		for i, path := range []string{"/version", "/version", widgetsPath, widgetsPath} {
			reused := false
			ctx := httptrace.WithClientTrace(
				t.Context(),
				&httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }},
			)
			response := who.c.send(ctx, http.MethodGet, path, nil)
			_, err := io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if err != nil || response.ProtoMajor != 2 || i > 0 && reused != who.kept {
				t.Errorf("request %d: %s, %v, connection reused: %t, want %t", i, response.Proto, err, reused, who.kept)
			}
		}
	}
}
