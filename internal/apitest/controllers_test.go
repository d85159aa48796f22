package apitest_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/shop/v1"
	"github.com/annexapi/annex/internal/testwait"
	"github.com/annexapi/annex/store/memory"
)

// factory is the shop with controllers: maker makes a widget and is done, waiter waits.
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

// makeWidget makes a widget by the configuration of a host.
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

func TestControllersRunBesideTheRequestsAndEndBeforeThem(t *testing.T) {
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
	<-began // one that failed runs again
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("write at the end: %v", err)
	}
}

func TestNewNamesEveryMistakeOfControllers(t *testing.T) {
	t.Parallel()
	s := shop()
	work := func(context.Context, *annex.Env) error { return nil }
	s.Controllers = []annex.Controller{{Run: work}, {Name: "A b", Run: work}, {Name: "c", Run: work}, {Name: "c"}}
	_, err := annex.New(t.Context(), s, annex.Options{Storage: memory.Storage()})
	for _, want := range []string{"controller 0: name: ", `controller "A b": name: a lowercase RFC 1123 label`, `controller "c": declared twice`, `controller "c": no Run`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	_, err = annex.New(t.Context(), factory(), annex.Options{Storage: memory.Storage(), Controllers: []string{"baker"}})
	if !errors.As(err, new(*annex.ConfigError)) || err.Error() != `Options.Controllers: there is no controller "baker"; there are maker, waiter` {
		t.Errorf("got %v", err)
	}
}

func TestControllersRunInAProcessOfTheirOwn(t *testing.T) {
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
	// There is no leader election in a server that has no Leases.
	out, err := exec.Command(binary, "controllers", "--kubeconfig", instance.Kubeconfig()).CombinedOutput()
	if want := "shop: " + instance.URL() + " serves no leases.coordination.k8s.io to elect a leader by: run one process, with --leader-elect=false\n"; err == nil || string(out) != want {
		t.Errorf("got %v: %s, want %s", err, out, want)
	}
}

func TestListersFollowUntilRequestsAreRefused(t *testing.T) {
	t.Parallel()
	var listed *annex.Lister[v1.Widget]
	s := only(widgets().AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Widget], error) {
		var err error
		listed, err = annex.ListerFor[v1.Widget](env)
		return func(context.Context, annex.Request[v1.Widget]) error { return nil }, err
	}))
	seen := make(chan error, 1)
	s.Controllers = []annex.Controller{{Name: "last", Run: func(ctx context.Context, env *annex.Env) error {
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
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-seen; err != nil {
		t.Errorf("what was created while the server drained is not listed: %v", err)
	}
}
