package cluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// atOnce is the time that a client may wait for the requests that every client of the cluster sends first, to all
// servers that joined it.
const atOnce = 100 * time.Millisecond

// everybodys are paths that every client requests and that do not concern the server itself.
var everybodys = []string{
	"/livez",
	"/apis",
	"/apis/wardle.example.com",
	"/apis/wardle.example.com/v1beta1",
	"/openapi/v3",
	"/openapi/v3/apis/wardle.example.com/v1beta1",
}

// A hanging storage makes the server unready, and delays requests for its objects. Discovery and health answer as
// before: no other client of the cluster waits.
func TestHangingStorage_delaysNoOtherClient(t *testing.T) {
	etcd := startEtcd(t)
	w := startAnnex(t, "hanging", etcd)
	w.register(t)
	admin := newKubectl(t, host.Admin())
	write(t, flunders(t, host.Admin(), namespace(t)), "before", 3)
	config := w.direct(user(t, "admin", "system:masters"))
	config.QPS = -1

	before := latencies(t, config)
	if err := syscall.Kill(etcd.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(etcd.PID(), syscall.SIGCONT) }
	defer resume()
	testwait.NoError(t, "the server says that its storage does not answer", func(ctx context.Context) error {
		if err := ready(ctx, config); err == nil {
			return fmt.Errorf("it is ready")
		}
		return nil
	})
	during := latencies(t, config)
	for _, path := range everybodys {
		t.Logf(
			"%s: %s before, %s while the storage hangs",
			path,
			before[path].Round(10*time.Microsecond),
			during[path].Round(10*time.Microsecond),
		)
		if during[path] > atOnce {
			t.Errorf("%s takes %s, more than %s", path, during[path], atOnce)
		}
	}
	// Through the cluster, too: discovery of everything, and objects of others.
	admin.prints("flunders", "api-resources", "--cached=false")
	admin.prints("kubernetes", "get", "service", "--namespace", "default")
	resume()
	testwait.NoError(t, "the server is ready again", func(ctx context.Context) error { return ready(ctx, config) })
	admin.prints("before-2", "get", "flunders", "--all-namespaces")
}

// latencies returns the medians of the requests that every client of a cluster makes.
func latencies(t *testing.T, config *rest.Config) map[string]time.Duration {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	medians := map[string]time.Duration{}
	for _, path := range everybodys {
		var took []time.Duration
		for range 21 {
			request, err := http.NewRequestWithContext(ending(t), http.MethodGet, config.Host+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")
			began := time.Now()
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", path, response.Status)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		medians[path] = took[len(took)/2]
	}
	return medians
}
