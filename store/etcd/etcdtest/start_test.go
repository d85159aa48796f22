package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
)

func shop() annex.Server {
	return annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name:  "shop.example.com",
			Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
		}},
	}
}

// run runs a shop that need not become ready. It ends by stop, or with the test.
func run(t *testing.T, options annex.Options) (config *rest.Config, ready <-chan struct{}, stop func() error) {
	t.Helper()
	return runServer(t, shop(), options)
}

// runServer is run for any server.
func runServer(t *testing.T, server annex.Server, options annex.Options) (config *rest.Config, ready <-chan struct{}, stop func() error) {
	t.Helper()
	if options.Listen == "" {
		options.Listen = "127.0.0.1:0"
	}
	instance, err := annex.New(t.Context(), server, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	isReady, done := make(chan struct{}), make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = instance.Run(ctx, func() { close(isReady) })
	}()
	stop = func() error {
		cancel()
		select {
		case <-done:
			return result
		case <-time.After(patience):
			return fmt.Errorf("it has not ended after %v", patience)
		}
	}
	t.Cleanup(func() { _ = stop() })
	if config, err = instance.ClientConfig(); err != nil {
		t.Fatal(err)
	}
	return config, isReady, stop
}

// answer returns a server's response to a GET.
func answer(t *testing.T, config *rest.Config, path string) (code int, header http.Header, text string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err.Error() // it does not listen yet
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

func wantAnswer(t *testing.T, config *rest.Config, path string, code int) {
	t.Helper()
	testwait.NoError(t, path, func(context.Context) error {
		if got, _, text := answer(t, config, path); got != code {
			return fmt.Errorf("%d, want %d: %s", got, code, text)
		}
		return nil
	})
}

func TestServer_unreachableEtcd_isAliveButNotReady(t *testing.T) {
	members := startCluster(t, 1, nil)
	members[0].stop()
	config, ready, stop := run(t, annex.Options{Storage: etcd.Cluster(etcd.Options{
		Endpoints: endpoints(members), HealthcheckTimeout: 200 * time.Millisecond,
	})})
	const path = "/apis/shop.example.com/v1/namespaces/default/widgets"
	wantAnswer(t, config, "/livez", http.StatusOK)
	for range 5 { // the response does not change with time
		code, header, text := answer(t, config, path)
		if code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" ||
			!strings.Contains(text, "widgets.shop.example.com are stored in etcd, which has not answered since the server started") {
			t.Errorf("%d %v %s", code, header, text)
		}
	}
	if code, _, text := answer(t, config, "/readyz?verbose"); code == http.StatusOK || !strings.Contains(text, "[-]storage") {
		t.Errorf("ready without etcd: %d %s", code, text)
	}
	select {
	case <-ready:
		t.Error("ready without etcd")
	default:
	}

	members[0].start(t)
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready although etcd answers")
	}
	wantAnswer(t, config, "/readyz", http.StatusOK)
	wantAnswer(t, config, path, http.StatusOK)
	client := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
	if _, err := client.Create(t.Context(), newWidget("w"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	testwait.NoError(t, "metrics", func(context.Context) error {
		_, _, text := answer(t, config, "/metrics")
		for _, want := range []string{"annex_storage_revision", "annex_storage_database_bytes"} {
			if !regexp.MustCompile(want + `{storage="etcd"} [1-9]`).MatchString(text) {
				return fmt.Errorf("no %s", want)
			}
		}
		if !strings.Contains(text, `annex_storage_read_only{storage="etcd"} 0`) {
			return errors.New("it is said to be read-only")
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestServer_waitingForEtcd_canBeStopped(t *testing.T) {
	unreachable := "http://" + freePorts(t, 1)[0]
	config, _, stop := run(t, annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: []string{unreachable}})})
	wantAnswer(t, config, "/livez", http.StatusOK)
	if err := stop(); err != nil {
		t.Error(err)
	}
	testwait.NoError(t, "all goroutines end", func(context.Context) error { return leftover() })
}

func TestServer_startTimeout_givesUp(t *testing.T) {
	unreachable := "http://" + freePorts(t, 1)[0]
	_, err := annex.New(t.Context(), shop(), annex.Options{Storage: etcd.Cluster(etcd.Options{
		Endpoints: []string{unreachable}, StartTimeout: 100 * time.Millisecond,
	})})
	if err == nil || !strings.Contains(err.Error(), unreachable) || !strings.Contains(err.Error(), "gave up after") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestHealth_slowEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	proxy := startProxy(t, members[0].address())
	log := &testlog.Buffer{}
	options := func(o *etcd.Options) {
		o.Endpoints = []string{"http://" + proxy.address()}
		o.HealthcheckTimeout, o.StartTimeout = 200*time.Millisecond, 0
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	slow := func(backend store.Backend) error {
		if err := unhealthy(backend, proxy.address()); err != nil {
			return err
		}
		if err := backend.Health(); !strings.Contains(err.Error(), "did not answer in 200ms") &&
			!strings.Contains(err.Error(), "does not answer in time") {
			return fmt.Errorf("not the reason: %w", err)
		}
		return nil
	}
	const delay = 2 * time.Second

	t.Run("while it is used", func(t *testing.T) {
		backend := open(t, members, options)
		pods := openPods(t, backend)
		mustCreate(t, pods, "before")
		proxy.slow(delay)
		testwait.NoError(t, "health with a slow etcd", func(context.Context) error { return slow(backend) })
		proxy.slow(0)
		testwait.NoError(t, "health with a fast etcd", func(context.Context) error { return backend.Health() })
		createAnyway(t, pods, "after")
	})
	t.Run("from the start", func(t *testing.T) {
		proxy.slow(delay)
		backend := open(t, members, options)
		if err := slow(backend); err != nil {
			t.Error(err)
		}
		proxy.slow(0)
		testwait.NoError(t, "health with a fast etcd", func(context.Context) error { return backend.Health() })
	})
	for _, want := range []string{`level=ERROR msg="Waiting for etcd"`, proxy.address(), `msg="etcd answers again"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}

// TestReplicas_certificatesOfOneAuthority follows docs/howto/replicas.md: one serving certificate, one client
// authority and one token file for all replicas.
func TestReplicas_certificatesOfOneAuthority(t *testing.T) {
	members, a := startCluster(t, 1, nil), newAuthority(t)
	serving, servingKey := a.sign("shop")
	alice, aliceKey := a.signFor("alice", "system:masters")
	tokens := writeFile(t, filepath.Join(t.TempDir(), "tokens.csv"), []byte(`d41b0e0e7a3b4c,bob,1,"system:masters"`+"\n"))
	var hosts []string
	for range 2 {
		config, ready, _ := run(t, annex.Options{
			DataDir: t.TempDir(), Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)}),
			TLSCertFile: serving, TLSPrivateKeyFile: servingKey, ClientCAFile: a.file, TokenAuthFile: tokens,
		})
		<-ready
		hosts = append(hosts, config.Host)
	}
	ca, err := os.ReadFile(a.file)
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]rest.Config{
		"certificate": {TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertFile: alice, KeyFile: aliceKey}},
		"token":       {TLSClientConfig: rest.TLSClientConfig{CAData: ca}, BearerToken: "d41b0e0e7a3b4c"},
	} {
		for i, host := range hosts {
			config.Host = host
			client := dynamic.NewForConfigOrDie(&config).Resource(widgets).Namespace("default")
			if i == 0 {
				if _, err := client.Create(t.Context(), newWidget(name), metav1.CreateOptions{}); err != nil {
					t.Errorf("%s at the first replica: %v", name, err)
				}
			}
			if _, err := client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Errorf("%s at replica %d: %v", name, i, err)
			}
		}
	}
}
