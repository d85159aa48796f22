package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // metrics: whether this process leads
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/program/definition"
)

// LeaderElection configures the Lease by which one of several processes becomes the leader.
type LeaderElection struct {
	Enabled                                   bool
	Namespace, Name                           string
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Complete fills in the name, and returns the first mistake.
func (e *LeaderElection) Complete(server string) error {
	if e.Name == "" {
		e.Name = requirements.ControllersLease(server)
	}
	switch {
	case !e.Enabled:
	case len(validation.IsDNS1123Label(e.Namespace)) > 0:
		return fmt.Errorf("LeaderElection.Namespace %q: %s", e.Namespace, validation.IsDNS1123Label(e.Namespace)[0])
	case len(validation.IsDNS1123Subdomain(e.Name)) > 0:
		return fmt.Errorf("LeaderElection.Name %q: %s", e.Name, validation.IsDNS1123Subdomain(e.Name)[0])
	case e.RetryPeriod <= 0:
		return fmt.Errorf("LeaderElection.RetryPeriod %s is not positive", e.RetryPeriod)
	case e.RenewDeadline.Seconds() <= leaderelection.JitterFactor*e.RetryPeriod.Seconds():
		return fmt.Errorf(
			"LeaderElection.RenewDeadline %s must be more than %g times LeaderElection.RetryPeriod %s",
			e.RenewDeadline,
			leaderelection.JitterFactor,
			e.RetryPeriod,
		)
	case e.LeaseDuration <= e.RenewDeadline || e.LeaseDuration < time.Second:
		return fmt.Errorf(
			"LeaderElection.LeaseDuration %s must be more than LeaderElection.RenewDeadline %s, and at least a second",
			e.LeaseDuration,
			e.RenewDeadline,
		)
	}
	return nil
}

// ErrNoLeases is returned for a server without Leases, which leader election needs.
var ErrNoLeases = errors.New("does not serve leases.coordination.k8s.io, which leader election requires: run only one process, with " +
	"LeaderElection.Enabled=false")

// Controllers are controllers that run in a process of their own.
type Controllers struct {
	Definition *definition.Definition
	// Selected are the selected controllers of the definition.
	Selected []define.Controller
	// Config is the client configuration for their server.
	Config   *rest.Config
	Election LeaderElection
	Probes   Probes
	// Started is called when the controllers start.
	Started func()
}

// Run runs the controllers until the context ends. Losing the leadership is an error.
func (c Controllers) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	probes, err := c.Probes.open(c.Definition.Server.Metrics)
	if err != nil {
		return err
	}
	defer probes.close()
	probes.serve()
	config := c.Config
	// A running set without informers: listers are only for hooks.
	informers := informer.NewSet(config, serializer.CodecFactory{})
	if err := informers.Run(ctx); err != nil {
		return err
	}
	trust := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(trust); err != nil {
		return fmt.Errorf("client of %s: %w", config.Host, err)
	}
	env := c.Definition.NewEnv(c.Definition.Server, config, informers, func() []byte { return trust.CAData })
	run := func(ctx context.Context) {
		probes.say("leads")
		c.Started()
		controllers.Run(ctx, c.Selected, env, clock.RealClock{})
	}
	if !c.Election.Enabled {
		run(ctx)
		return nil
	}
	if err := servesLeases(config); err != nil {
		return err
	}
	probes.say("waits for the lead")
	return elect(ctx, c.Definition.Server.Name, config, c.Election, run)
}

func servesLeases(config *rest.Config) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	list, err := client.ServerResourcesForGroupVersion(coordinationv1.SchemeGroupVersion.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("leader election: read the API groups of %s: %w", config.Host, err)
	}
	if err != nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "leases" }) {
		return fmt.Errorf("%s %w", config.Host, ErrNoLeases)
	}
	return nil
}

// leadAlone calls run while this replica holds the Lease of its controllers. It returns when the context ends.
func leadAlone(ctx context.Context, server string, config *rest.Config, namespace string, run func(context.Context)) {
	election := LeaderElection{
		Enabled: true, Namespace: namespace, Name: requirements.ControllersLease(server),
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	}
	for {
		err := elect(ctx, server, config, election, func(ctx context.Context) {
			run(ctx)
			// Hold the Lease even after the controllers have returned, so that no other replica runs them again.
			<-ctx.Done()
		})
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Controllers are not running, trying to become leader again")
		if !await.Sleep(ctx, clock.RealClock{}, election.RetryPeriod) {
			return
		}
	}
}

// elect calls run while this process is the leader. It releases the Lease only after run has returned, so that two
// processes never run it at the same time.
func elect(ctx context.Context, server string, config *rest.Config, election LeaderElection, run func(context.Context)) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, election.Namespace, election.Name,
		resourcelock.ResourceLockConfig{Identity: hostname + "_" + uuid.NewString()}, config, election.RenewDeadline)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var leading turn
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: server, ReleaseOnCancel: true,
		LeaseDuration: election.LeaseDuration, RenewDeadline: election.RenewDeadline, RetryPeriod: election.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			// Called in a goroutine of its own. The context ends with the leadership.
			OnStartedLeading: func(lead context.Context) {
				leading.take(func() {
					defer release()
					lead, stop := context.WithCancel(lead)
					defer stop()
					defer context.AfterFunc(ctx, stop)()
					run(lead)
				})
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// A process that is not the leader has no Lease to release, and returns at once.
	defer context.AfterFunc(ctx, func() {
		if !elector.IsLeader() {
			release()
		}
	})()
	elector.Run(holding)
	lost := holding.Err() == nil
	leading.end(election.LeaseDuration - election.RenewDeadline)
	if lost {
		return fmt.Errorf("leadership lost: the Lease %s/%s could not be renewed", election.Namespace, election.Name)
	}
	return nil
}

// turn is the term of a leader. After the end of its term, a process never leads again.
type turn struct {
	mu      sync.Mutex
	over    bool
	leading sync.WaitGroup
}

func (t *turn) take(run func()) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.leading.Add(1)
	t.mu.Unlock()
	defer t.leading.Done()
	run()
}

// end waits for run to return, for timeout at most. After it, run is not called any more.
func (t *turn) end(timeout time.Duration) {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.leading.Wait()
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
