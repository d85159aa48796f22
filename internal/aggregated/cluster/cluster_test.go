package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func open(t *testing.T, options Options) *Cluster {
	t.Helper()
	return openConfig(t, Config{Options: options})
}

func openConfig(t *testing.T, c Config) *Cluster {
	t.Helper()
	c.Server, c.Version, c.InFlight = "shop", compatibility.DefaultBuildEffectiveVersion(), 10
	h, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// run runs a cluster until the test ends or stop is called.
func run(t testing.TB, ctx context.Context, h *Cluster) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// hooks let everything pass.
type hooks struct{}

func (hooks) Handles(admission.Operation) bool { return true }

func TestContact_patience(t *testing.T) {
	c := &contact{
		need:    requirements.Requirement{GroupVersionResource: requirements.Namespaces, Verbs: []string{"list", "watch"}},
		changed: func() {},
		failed:  make(chan struct{}, 1),
	}
	gone, forbidden := &unreachable{"https://cluster", errors.New("refused")}, &forbiddenError{c.need}
	if err := c.err(); err != errNotAsked {
		t.Errorf("in the beginning: %v", err)
	}
	c.set(gone)
	if err := c.err(); err != gone {
		t.Errorf("never reached: %v", err)
	}
	c.set(nil)
	c.set(gone)
	if err := c.err(); err != nil || c.well() {
		t.Errorf("gone a moment ago: %v, well %v", err, c.well())
	}
	c.since = time.Now().Add(-2 * patience)
	c.set(gone)
	if err := c.err(); err != gone {
		t.Errorf("gone for long: %v", err)
	}
	c.set(nil)
	c.set(forbidden)
	if err := c.err(); err != forbidden {
		t.Errorf("a permission that was taken: %v", err)
	}
	c.set(gone)
	c.set(forbidden)
	if err := c.err(); err != nil || c.well() {
		t.Errorf("forbidden by a cluster that has just come back: %v, well %v", err, c.well())
	}
	c.refused = time.Now().Add(-2 * settling)
	c.set(forbidden)
	if err := c.err(); err != forbidden {
		t.Errorf("still forbidden by a cluster that came back: %v", err)
	}
	c.set(nil)
	if err := c.err(); err != nil {
		t.Errorf("at the end: %v", err)
	}
	c = &contact{need: c.need, changed: func() {}, failed: make(chan struct{}, 1)}
	c.set(gone)
	c.set(forbidden)
	if err := c.err(); err != forbidden {
		t.Errorf("forbidden by a cluster that never gave anything: %v", err)
	}
}

func TestReport_logsOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a problem would be logged again")
	}
	cluster := clustertest.Start(t)
	h := open(t, Options{Kubeconfig: cluster.Kubeconfig()})
	cluster.Down()
	log := &testlog.Buffer{}
	stop := run(t, klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log)))), h)
	testwait.Until(t, "the cluster is missed", func() bool { return strings.Contains(log.String(), "cannot be reached") })
	cluster.Forbid("validatingadmissionpolicies", "tokenreviews", "flowschemas")
	cluster.Up()
	const both = "a binding to the ClusterRole system:auth-delegator, list and watch on " +
		"validatingadmissionpolicies.admissionregistration.k8s.io; `shop manifests` prints the required bindings"
	testwait.Until(t, "permissions are missed", func() bool {
		return strings.Contains(log.String(), both) && strings.Contains(log.String(), "Priority and fairness is disabled")
	})
	cluster.Permit("validatingadmissionpolicies", "tokenreviews", "flowschemas")
	testwait.Until(t, "all is well", func() bool {
		return strings.Contains(log.String(), "can read everything that it requires") && h.Problem() == nil
	})
	stop()
	text := log.String()
	for said, times := range map[string]int{
		"cannot be reached": 1, "can read everything that it requires": 1, "Priority and fairness is disabled": 1,
		both: 1,
	} {
		if n := strings.Count(text, said); n != times {
			t.Errorf("%q was said %d times:\n%s", said, n, text)
		}
	}
	// Missing permissions are found one by one.
	if n := strings.Count(text, "\n"); n > 10 {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

func TestClose_leavesNothingRunning(t *testing.T) {
	cluster := clustertest.Start(t)
	kubeconfig := cluster.Kubeconfig()
	cycle := func(running bool) {
		h, err := Open(
			Config{Options: Options{Kubeconfig: kubeconfig}, Server: "shop", Version: compatibility.DefaultBuildEffectiveVersion(), InFlight: 10},
		)
		if err != nil {
			t.Fatal(err)
		}
		none, err := admit.ReadConfiguration("", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Admission([]admit.Plugin{admit.NewPlugin("Hooks", hooks{})}, none); err != nil {
			t.Fatal(err)
		}
		if running {
			stop := run(t, t.Context(), h)
			testwait.Until(t, "it is well", func() bool { return h.Problem() == nil })
			stop()
		}
		h.Close()
		h.Close() // has no effect
	}
	cycle(true) // creates resources that are shared by all cycles
	cluster.Down()
	cluster.Up()
	runtime.GC()
	before := runtime.NumGoroutine()
	for range 3 {
		cycle(true)
		cycle(false)
	}
	cluster.Down() // including its connections
	testwait.NoError(t, "goroutines", func(context.Context) error {
		if now := runtime.NumGoroutine(); now > before+3 {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d, there were %d:\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}

// A repeated read must not use the credentials of the first attempt: the tokens of pods are replaced every hour.
func TestObserver_retry_freshCredentials(t *testing.T) {
	cluster := clustertest.Start(t)
	credential := func(token string) []byte {
		return []byte(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"` + token + `"}}`)
	}
	file := clustertest.File(t, "credential", credential("expired"))
	command := "exec: {apiVersion: client.authentication.k8s.io/v1, command: cat, args: [" + file + "], interactiveMode: Never}"
	kubeconfig := clustertest.File(
		t,
		"kubeconfig",
		bytes.Replace(mustRead(t, cluster.Kubeconfig()), []byte("token: server"), []byte(command), 1),
	)
	h := open(t, Options{Kubeconfig: kubeconfig})
	run(t, t.Context(), h)
	testwait.Until(t, "the credentials are refused", func() bool {
		err := h.Problem()
		return err != nil && strings.Contains(err.Error(), "does not accept the server's credentials (401)")
	})
	if err := os.WriteFile(file, credential("server"), 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "fresh credentials are sent", func() bool { return h.Problem() == nil })
}

func TestOptions_cacheTTL(t *testing.T) {
	for name, test := range map[string]struct {
		ttl   time.Duration
		asked int
	}{"by default": {0, 1}, "never": {-time.Minute, 3}} {
		cluster := clustertest.Start(t)
		cluster.Know("secret", authenticationv1.UserInfo{Username: "jane"})
		h := open(t, Options{Kubeconfig: cluster.Kubeconfig(), TokenCacheTTL: test.ttl})
		for range 3 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer secret")
			if who, ok, err := h.AuthenticateRequest(r); !ok || err != nil || who.User.GetName() != "jane" {
				t.Fatalf("%s: %v %v %v", name, who, ok, err)
			}
		}
		if n := cluster.Reviews("tokenreviews"); n != test.asked {
			t.Errorf("%s: asked %d times instead of %d", name, n, test.asked)
		}
	}
}

func TestAuthenticationUnavailable(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Know("good", authenticationv1.UserInfo{Username: "jane"})
	cluster.Reject("expired", "the token has expired")
	h := open(t, Options{Kubeconfig: cluster.Kubeconfig(), TokenCacheTTL: -1})
	ask := func(ctx context.Context, token string) error {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		_, ok, err := h.AuthenticateRequest(r)
		if ok == (err != nil) {
			t.Errorf("%s: %v %v", token, ok, err)
		}
		return err
	}
	if err := ask(t.Context(), "good"); err != nil {
		t.Error(err)
	}
	for _, token := range []string{"unknown", "expired"} {
		if err := h.AuthenticationUnavailable(ask(t.Context(), token)); err != nil {
			t.Errorf("the cluster said no to %s: %v", token, err)
		}
	}
	for name, test := range map[string]struct {
		before, after func()
		want          string
	}{
		"a permission that is missing": {
			func() { cluster.Forbid("tokenreviews") }, func() { cluster.Permit("tokenreviews") },
			"in the cluster: a binding to the ClusterRole system:auth-delegator; `shop manifests` prints the required bindings",
		},
		"a cluster that is gone": {cluster.Down, cluster.Up, "cannot be reached"},
	} {
		test.before()
		for _, token := range []string{"good", "unknown"} {
			if err := h.AuthenticationUnavailable(ask(t.Context(), token)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		test.after()
		if err := ask(t.Context(), "good"); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}

	// This is the last step, while no response can arrive: a review in flight outlasts the request that began it, and
	// the next request with its token would share it.
	ended, end := context.WithCancel(t.Context())
	end()
	release := cluster.Hold()
	defer release()
	for _, token := range []string{"good", "unknown"} {
		if err := h.AuthenticationUnavailable(ask(ended, token)); !errors.Is(err, errNotReviewed) {
			t.Errorf("a request that has ended: %v", err)
		}
	}
}

func TestPlugins_likeUpstream(t *testing.T) {
	t.Parallel()
	upstream := []string{
		lifecycle.PluginName,
		mutating.PluginName,
		mutatingwebhook.PluginName,
		validating.PluginName,
		validatingwebhook.PluginName,
	}
	if names := requirements.Plugins(); !slices.Equal(names, upstream) {
		t.Errorf("%v instead of %v", names, upstream)
	}
}

func TestHeadersProblem_missingHeaders(t *testing.T) {
	cluster := clustertest.Start(t)
	cluster.Configure(func(data map[string]string) { delete(data, "requestheader-client-ca-file") })
	h := open(t, Options{Kubeconfig: cluster.Kubeconfig()})
	run(t, t.Context(), h)
	testwait.Until(t, "it says so", func() bool {
		err := h.Problem()
		return err != nil && strings.Contains(err.Error(), "has no requestheader-client-ca-file: the cluster does not support "+
			"aggregated servers")
	})
	cluster.Configure(nil)
	testwait.Until(t, "it is well", func() bool { return h.Problem() == nil })
}

func TestHasNamespace(t *testing.T) {
	cluster := clustertest.Start(t)
	h := open(t, Options{Kubeconfig: cluster.Kubeconfig()})
	if err := h.HasNamespace(t.Context(), metav1.NamespaceDefault); err == nil {
		t.Error("known before the cluster was asked")
	}
	run(t, t.Context(), h)
	testwait.Until(t, "it is well", func() bool { return h.Problem() == nil })
	if err := h.HasNamespace(t.Context(), metav1.NamespaceDefault); err != nil {
		t.Error(err)
	}
	if err := h.HasNamespace(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), `namespaces "none" not found`) {
		t.Errorf("a namespace that is missing: %v", err)
	}
	careless := openConfig(
		t,
		Config{
			Options:   Options{Kubeconfig: cluster.Kubeconfig()},
			Admission: config.AdmissionOptions{DisablePlugins: []string{"NamespaceLifecycle"}},
		},
	)
	if err := careless.HasNamespace(t.Context(), "none"); err != nil {
		t.Error(err)
	}
}

func TestInPod(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	for name, test := range map[string]struct {
		env   map[string]string
		token string
		want  bool
	}{
		"a pod":                           {pod, token, true},
		"a pod without a service account": {pod, token + "s", false},
		"no pod":                          {nil, token, false},
	} {
		if got := inPod(func(name string) string { return test.env[name] }, test.token); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
