package cluster

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// The host reports whether the server is available, and clients resume where they were.
func restarts(t *testing.T, w *wardle) {
	ns := namespace(t)
	client := flunders(t, host.Admin(), ns)
	write(t, client, "before", 20)
	f := follow(t, host.Admin(), alphaFlunders, ns)
	goesOn := func(prefix string) {
		t.Helper()
		if err := w.Start(ending(t)); err != nil {
			t.Fatal(err)
		}
		awaitAvailable(t, apiregistrationv1.ConditionTrue)
		// For a moment after the cluster reports the server as available, its proxy may not know it, and for a moment
		// after upstream's server reports that it is ready, it does not know the authority of the front proxy, and
		// takes all callers for anonymous.
		testwait.NoError(t, "the way to the server is open", func(ctx context.Context) error {
			_, err := client.List(ctx, metav1.ListOptions{})
			if err != nil && !w.upstream && !apierrors.IsServiceUnavailable(err) {
				t.Fatal(err)
			}
			return err
		})
		write(t, client, prefix, 10)
		f.catchesUp(t)
	}
	w.Kill()
	awaitAvailable(t, apiregistrationv1.ConditionFalse)
	if _, err := client.List(ending(t), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("list of a server that does not run: %v", err)
	}
	goesOn("after-a-kill")
	if w.upstream {
		w.Kill() // it takes a minute to end while clients watch through the cluster
	} else if err := w.Stop(); err != nil {
		t.Error(err)
	}
	goesOn("after-a-stop")
	f.toldOnce(t)
}

// awaitAvailable waits for the cluster's condition of both versions.
func awaitAvailable(t *testing.T, status apiregistrationv1.ConditionStatus) {
	t.Helper()
	for _, version := range []string{"v1alpha1.", "v1beta1."} {
		testwait.NoError(t, "what the cluster says", func(ctx context.Context) error {
			if err := host.CheckAgain(ctx, version+group); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return host.AwaitAvailable(ctx, version+group, status)
		})
	}
}

func hostRestarts(t *testing.T, w *wardle) {
	ns := namespace(t)
	client := flunders(t, host.Admin(), ns)
	write(t, client, "before", 20)
	f := follow(t, host.Admin(), alphaFlunders, ns)
	direct := follow(t, w.direct(user(t, "admin", "system:masters")), alphaFlunders, ns)
	host.APIServer.Kill()
	// The server has no cluster to ask, but its watches continue and it serves callers who need no permission of the
	// cluster.
	write(t, flunders(t, w.direct(user(t, "admin", "system:masters")), ns), "meanwhile", 10)
	direct.catchesUp(t)
	if err := host.APIServer.Start(ending(t)); err != nil {
		t.Fatal(err)
	}
	awaitAvailable(t, apiregistrationv1.ConditionTrue)
	write(t, client, "after", 10)
	f.catchesUp(t)
	direct.catchesUp(t)
	f.toldOnce(t)
	direct.toldOnce(t)
	if q := direct.queries(); len(q) != 1 {
		t.Errorf("the watch of the server did not go on: %q", q)
	}
}
