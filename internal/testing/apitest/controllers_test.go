package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/facts/coordination"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// factory is the shop with controllers: maker creates a widget and returns, waiter waits.
func factory() annex.Server {
	s := shop()
	s.Controllers = []annex.Controller{
		{Name: "maker", Run: func(ctx context.Context, env *annex.Env) error {
			return makeWidget(ctx, env.ClientConfig(), "made")
		}},
		{Name: "waiter", Run: func(ctx context.Context, _ *annex.Env) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	}
	return s
}

// makeWidget creates a widget with the client configuration of a host.
func makeWidget(ctx context.Context, config *rest.Config, name string) error {
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	body := `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"` + name + `"}}`
	err = c.Post().AbsPath(widgetsPath).SetHeader("Content-Type", jsonType).Body([]byte(body)).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func TestControllers_endBeforeRequests(t *testing.T) {
	t.Parallel()
	s := shop()
	began, failed, ended := make(chan struct{}), 0, make(chan error, 1)
	var c *client
	s.Controllers = []annex.Controller{
		{Name: "flaky", Run: func(context.Context, *annex.Env) error {
			failed++
			if failed == 1 {
				return errors.New("once is never")
			}
			close(began)
			return nil
		}},
		{Name: "last", Run: func(ctx context.Context, env *annex.Env) error {
			<-ctx.Done()
			// The server still answers.
			ended <- makeWidget(context.WithoutCancel(ctx), env.ClientConfig(), "last")
			return nil
		}},
		{Name: "unwanted", Run: func(context.Context, *annex.Env) error {
			t.Error("a controller runs that is not selected")
			return nil
		}},
	}
	instance, stop := run(t, s, annex.Options{Storage: memory.Storage(), Controllers: []string{"*", "-unwanted"}})
	c = clientOf(t, instance)
	c.get("/readyz").want(200)
	<-began // a failed one runs again
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("write at the end: %v", err)
	}
}

func TestNew_controllers_mistakes(t *testing.T) {
	t.Parallel()
	s := shop()
	work := func(context.Context, *annex.Env) error { return nil }
	s.Controllers = []annex.Controller{{Run: work}, {Name: "A b", Run: work}, {Name: "c", Run: work}, {Name: "c"}}
	_, err := annex.New(t.Context(), s, annex.Options{Storage: memory.Storage()})
	for _, want := range []string{"controller 0: name: ", `controller "A b": name: a lowercase RFC 1123 label`, `controller "c": ` +
		`declared twice`, `controller "c": no Run`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	_, err = annex.New(t.Context(), factory(), annex.Options{Storage: memory.Storage(), Controllers: []string{"baker"}})
	if !errors.As(err, new(*annex.ConfigError)) ||
		err.Error() != `Options.Controllers: unknown controller "baker"; there are maker, waiter` {
		t.Errorf("got %v", err)
	}
}

func TestControllers_separateProcess(t *testing.T) {
	t.Parallel()
	instance, _ := run(t, factory(), annex.Options{Storage: memory.Storage(), DataDir: t.TempDir(), Controllers: []string{}})
	c := clientOf(t, instance)
	c.get(widgetsPath + "/made").want(404)
	watch := c.watch(widgetsPath + "?watch=1")
	binary, err := exec.LookPath("factory")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "controllers", "--kubeconfig", instance.Kubeconfig(), "--leader-elect=false")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch.want("ADDED made")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	// A server without controllers has no leader election, and so no Leases.
	instance, _ = run(t, shop(), annex.Options{Storage: memory.Storage(), DataDir: t.TempDir()})
	out, err := exec.Command(binary, "controllers", "--kubeconfig", instance.Kubeconfig()).CombinedOutput()
	if want := "shop: " + instance.URL() + " does not serve leases.coordination.k8s.io, which leader election requires: run only one " +
		"process, with " +
		"--leader-elect=false\n"; err == nil || string(out) != want {
		t.Errorf("got %v: %s, want %s", err, out, want)
	}
}

// leaseTimes are short.
var leaseTimes = []string{
	"--leader-elect-lease-duration",
	"2s",
	"--leader-elect-renew-deadline",
	"1500ms",
	"--leader-elect-retry-period",
	"200ms",
}

// The Leases are served by the server itself, which is no control plane.
func TestControllers_killedLeader_isReplaced(t *testing.T) {
	t.Parallel()
	instance, _ := run(t, factory(), annex.Options{Storage: memory.Storage(), DataDir: t.TempDir(), Controllers: []string{}})
	c := clientOf(t, instance)
	const lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/shop-controllers"
	var address string
	start := func() *exec.Cmd {
		t.Helper()
		binary, err := exec.LookPath("factory")
		if err != nil {
			t.Fatal(err)
		}
		address = freeAddress(t)
		cmd := exec.Command(
			binary,
			append(
				[]string{
					"controllers",
					"--kubeconfig",
					instance.Kubeconfig(),
					"--controllers=waiter",
					"--health-probe-bind-address",
					address,
					"--metrics-bind-address",
					address,
				},
				leaseTimes...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	says := func(path, want string) {
		t.Helper()
		testwait.NoError(t, path+" says "+want, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err == nil && !strings.Contains(string(body), want) {
				err = fmt.Errorf("%d: %.200s", response.StatusCode, body)
			}
			return err
		})
	}
	first := start()
	says("/readyz", "leads")
	leader := c.get(lease).want(200).str("spec", "holderIdentity")
	start()
	says("/readyz", "waits for the lead")
	says("/healthz", "ok")
	says("/metrics", "leader_election_master_status")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	says("/readyz", "leads")
	if now := c.get(lease).want(200).str("spec", "holderIdentity"); now == leader {
		t.Errorf("the Lease is still that of %s", now)
	}
}

// freeAddress returns an address at which nothing listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestControllers_events(t *testing.T) {
	t.Parallel()
	c := start(t, factory())
	event := fields{
		"apiVersion":          "events.k8s.io/v1",
		"kind":                "Event",
		"metadata":            fields{"name": "e"},
		"eventTime":           "2026-11-23T20:00:00.000000Z",
		"type":                "Normal",
		"reason":              "Baked",
		"note":                "it is done",
		"action":              "Bake",
		"reportingController": "shop/oven",
		"reportingInstance":   "oven-0",
		"regarding":           fields{"apiVersion": "shop.example.com/v1", "kind": "Widget", "namespace": "default", "name": "w"},
	}
	c.post("/apis/events.k8s.io/v1/namespaces/default/events", event).want(201)
	if got := c.get("/api/v1/namespaces/default/events/e").want(200).str("message"); got != "it is done" {
		t.Errorf("the event says %q", got)
	}
	// A server without controllers has neither.
	c = start(t, shop())
	c.get("/api/v1/namespaces/default/events").want(404)
	c.get("/apis/coordination.k8s.io/v1/leases").want(404)
}

func TestControllers_ownLeases(t *testing.T) {
	t.Parallel()
	s := factory()
	s.Groups = append(
		s.Groups,
		annex.Group{
			Name:  "coordination.k8s.io",
			Kinds: []annex.Kind{annex.KindOf[coordinationv1.Lease, coordinationv1.LeaseList]("leases", coordination.API).ShortNames("own")},
		},
	)
	c := start(t, s)
	if a := c.get("/apis/coordination.k8s.io/v1").want(200); !strings.Contains(string(a.raw), `"shortNames":["own"]`) {
		t.Errorf("discovery: %s", a.raw)
	}
}

// The metrics of libraries are in registries of their own, whose names may collide with the server's.
func TestMetrics_definition_noDuplicates(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	oven := prometheus.NewCounter(prometheus.CounterOpts{Name: "oven_pizzas_total", Help: "Pizzas."})
	registry.MustRegister(oven, collectors.NewGoCollector())
	oven.Inc()
	s := shop()
	s.Metrics = []prometheus.Gatherer{registry, registry}
	a := start(t, s).get("/metrics").want(200)
	for _, line := range []string{"\noven_pizzas_total 1\n", "\n# TYPE go_goroutines gauge\n"} {
		if n := strings.Count(string(a.raw), line); n != 1 {
			t.Errorf("%q is there %d times", line, n)
		}
	}
}

func TestListers_followUntilShutdown(t *testing.T) {
	t.Parallel()
	var listed *annex.Lister[v1.Widget]
	s := only(widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
		var err error
		listed, err = annex.ListerFor[v1.Widget](env)
		return func(context.Context, annex.Request[v1.Widget]) error { return nil }, err
	}))
	begun, seen := make(chan struct{}), make(chan error, 1)
	s.Controllers = []annex.Controller{{Name: "last", Run: func(ctx context.Context, env *annex.Env) error {
		close(begun)
		<-ctx.Done() // the server drains
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testwait.Patience)
		defer cancel()
		err := makeWidget(ctx, env.ClientConfig(), "last")
		for err == nil {
			if _, err = listed.Get(ctx, "default", "last"); err == nil {
				break
			}
			if apierrors.IsNotFound(err) {
				err = ctx.Err()
			}
		}
		seen <- err
		return nil
	}}}
	_, stop := run(t, s, annex.Options{Storage: memory.Storage(), ShutdownTimeout: testwait.Patience})
	<-begun // over etcd a server is ready before it may run its controllers
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-seen; err != nil {
		t.Errorf("what was created while the server drained is not listed: %v", err)
	}
}
