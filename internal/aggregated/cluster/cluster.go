// Package cluster contains the connections of an aggregated server to the kube-apiserver in front of it, its cluster.
// The cluster authenticates and authorizes callers, and determines which namespaces exist, which webhooks and
// policies apply to a write, and how requests share the server.
//
// The components are upstream's. This package makes them tolerate an unavailable cluster. The server starts even if
// the cluster is unreachable or denies a permission, and learns that from the responses. Until all requirements are
// met, the server is not ready, rejects writes, and names the missing permission. No check is ever skipped, and no
// restart is needed when the permission is granted.
//
// Reads are retried below client-go, in the transport (observer): caches wait instead of failing, and a failure is
// logged once instead of by each of them.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	clocks "k8s.io/utils/clock"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/base/await"
)

// Config configures a Cluster.
type Config struct {
	Options Options
	// Server is the name of the server for messages: "NAME manifests" prints bindings.
	Server string
	// Admission enables and disables the plugins that use objects of the cluster.
	Admission config.AdmissionOptions
	// ClientCAFile contains authorities of client certificates. It replaces the cluster's.
	ClientCAFile string
	// RequestHeader configures the headers with callers' names. If it contains authorities, it replaces the
	// configuration that the cluster publishes.
	RequestHeader config.RequestHeaderOptions
	// Version is the Kubernetes version for admission plugins.
	Version compatibility.EffectiveVersion
	// Own authenticates the tokens of the server's own clients, which the cluster does not know. Nil means none.
	Own authenticator.Token
	// InFlight is the number of requests that the server handles concurrently, queued by the cluster's priority
	// levels; 0 disables queueing.
	InFlight int
}

// Cluster is the cluster of a server. Its methods may be called concurrently.
type Cluster struct {
	config   Config
	url      string
	way      *rest.Config
	contacts []*contact
	clock    clock

	core, authentication, authorization *clientset
	dynamic                             dynamic.Interface
	informers                           *factory
	mapper                              *restmapper.DeferredDiscoveryRESTMapper

	authenticator  authenticator.Request
	requestHeaders *authenticatorfactory.RequestHeaderConfig
	clientCA       dynamiccertificates.CAContentProvider
	open, all      authorizer.Authorizer
	flowControl    utilflowcontrol.Interface

	// runners read certificates and request headers.
	runners []runner
	// stopped ends the background work of plugins.
	stopped   chan struct{}
	stopOnce  sync.Once
	failures  atomic.Int64 // number of events that may change the result of Problem
	wellSince atomic.Int64 // the value of failures when Problem last returned nil
	wake      chan struct{}
	ran       atomic.Bool
}

type runner interface {
	Run(ctx context.Context, workers int)
}

// Open reads the kubeconfigs and files, and sends no requests. Close must be called; if Run is called, after Run has
// returned.
func Open(c Config) (*Cluster, error) {
	ways, err := loadConfigs(c.Options)
	if err != nil {
		return nil, err
	}
	h := &Cluster{config: c, url: ways.core.Host, way: ways.core, stopped: make(chan struct{}), wake: make(chan struct{}, 1)}
	h.clock.tell = func(skew time.Duration) {
		klog.Background().
			Error(nil, "The clocks of the cluster and of this machine differ: new certificates and certificates about to expire are "+
				"rejected", "skew",
				skew.Round(time.Second))
	}
	for _, need := range requirements.Of(config.Options{Cluster: c.Options, Admission: c.Admission, ClientCAFile: c.ClientCAFile,
		RequestHeader: c.RequestHeader, PriorityAndFairness: new(c.InFlight > 0)}) {
		h.contacts = append(h.contacts, &contact{need: need, changed: h.change, failed: make(chan struct{}, 1)})
	}
	h.failures.Add(1) // nothing has been requested yet
	if err := h.connect(ways); err != nil {
		return nil, err
	}
	if err := h.openAuthentication(); err != nil {
		h.Close()
		return nil, err
	}
	if err := h.openAuthorization(); err != nil {
		h.Close()
		return nil, err
	}
	if c.InFlight > 0 {
		h.flowControl = utilflowcontrol.New(h.informers, h.core.FlowcontrolV1(), c.InFlight)
	}
	for _, contact := range h.contacts {
		if !contact.need.Watched() || contact.need.GroupVersionResource == requirements.ConfigMaps {
			continue
		}
		contact.synced = h.informers.synced(contact.need.GroupVersionResource)
	}
	return h, nil
}

// connect creates the clients. They have no rate limit, since it would make the server slower than its cluster.
func (h *Cluster) connect(ways configs) error {
	ways.authorization.Timeout = reviewTimeout
	for _, client := range []struct {
		to  **clientset
		way *rest.Config
	}{{&h.core, ways.core}, {&h.authentication, ways.authentication}, {&h.authorization, ways.authorization}} {
		client.way.QPS = -1
		known, err := rest.HTTPClientFor(client.way)
		if err != nil {
			return fmt.Errorf("client for the cluster %s: %w", client.way.Host, err)
		}
		// The observer wraps the transport that adds credentials, so that a read which is retried for hours always
		// has current credentials.
		observed := *known
		observed.Transport = observer{known.Transport, h}
		if *client.to, err = newClientset(client.way, &observed); err != nil {
			return fmt.Errorf("client for the cluster %s: %w", client.way.Host, err)
		}
		if client.way == ways.core {
			if h.dynamic, err = dynamic.NewForConfigAndClient(client.way, &observed); err != nil {
				return fmt.Errorf("client for the cluster %s: %w", client.way.Host, err)
			}
		}
	}
	h.informers = newFactory(h.core)
	return nil
}

// Close ends the background work of Open.
func (h *Cluster) Close() {
	h.stopOnce.Do(func() { close(h.stopped) })
	if h.ran.Load() {
		return
	}
	// Upstream's controllers create their queues in the constructor and release them only at the end of Run.
	ended, end := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	end()
	for _, r := range h.runners {
		r.Run(ended, 1)
	}
	if h.flowControl != nil {
		// If the server has run, it has also run the flow control.
		_ = h.flowControl.Run(h.stopped) // always returns an error when it has stopped
	}
}

// Run keeps the state of the cluster current until the context ends.
func (h *Cluster) Run(ctx context.Context) {
	h.ran.Store(true)
	var all sync.WaitGroup
	defer all.Wait()
	// Upstream's controllers log an error if they are stopped before the cluster has responded.
	silent := klog.NewContext(ctx, logr.Discard())
	for _, r := range h.runners {
		all.Go(func() { r.Run(silent, 1) })
	}
	all.Go(func() { h.informers.run(ctx) })
	for _, c := range h.contacts {
		switch c.need.GroupVersionResource {
		case requirements.TokenReviews:
			// The review has no token: its rejection as invalid proves the permission.
			all.Go(func() {
				c.ask(ctx, func(ctx context.Context) {
					_, _ = h.authentication.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{})
				})
			})
		case requirements.AccessReviews:
			all.Go(func() {
				c.ask(ctx, func(ctx context.Context) {
					_, _ = h.authorization.AuthorizationV1().
						SubjectAccessReviews().
						Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
				})
			})
		}
	}
	if h.mapper != nil {
		all.Go(func() { wait.UntilWithContext(ctx, func(context.Context) { h.mapper.Reset() }, 30*time.Second) })
	}
	h.report(ctx)
}

// ask repeats a review until the cluster responds, and again after each failure.
func (c *contact) ask(ctx context.Context, review func(context.Context)) {
	retry := retries()
	for {
		asking, cancel := context.WithTimeout(ctx, reviewTimeout)
		review(asking)
		cancel()
		if c.well() {
			retry = retries()
			select {
			case <-c.failed:
			case <-ctx.Done():
				return
			}
		}
		if !await.Sleep(ctx, clocks.RealClock{}, retry()) {
			return
		}
	}
}

// retries returns a function that returns the successive delays between retries.
func retries() func() time.Duration {
	return wait.Backoff{Duration: firstRetry, Factor: 2, Cap: lastRetry, Steps: math.MaxInt}.DelayFunc()
}

// change records that the result of Problem may change.
func (h *Cluster) change() {
	h.failures.Add(1)
	await.Notify(h.wake)
}

// report logs each problem once, and the end of all problems.
func (h *Cluster) report(ctx context.Context) {
	logger := klog.FromContext(ctx)
	last, flow := "", true
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		// Several responses arrive together.
		if !await.Sleep(ctx, clocks.RealClock{}, time.Second) {
			return
		}
		problem := h.Problem()
		switch kind := kindOf(problem); {
		case kind == last:
		case problem == nil:
			logger.Info("The server can read everything that it requires from the cluster", "cluster", h.url)
			last = kind
		default:
			logger.Error(problem, "Not ready: the server cannot read everything that it requires from the cluster; "+
				"trying again", "cluster", h.url)
			last = kind
		}
		if ok := !h.flowTroubled(); ok != flow {
			if flow = ok; !ok {
				logger.Error(
					nil,
					"Priority and fairness is disabled: the cluster does not permit list and "+
						"watch on "+requirements.FlowSchemas.GroupResource().
						String()+
						" and "+requirements.PriorityLevels.Resource,
					"cluster",
					h.url,
				)
			}
		}
		if errors.As(problem, new(*responseError)) {
			h.change() // the end of reading causes no request
		}
	}
}

// kindOf returns the problem without the parts that vary between attempts.
func kindOf(problem error) string {
	if u := (*unreachable)(nil); errors.As(problem, &u) {
		return "unreachable " + u.cluster
	}
	if problem == nil {
		return ""
	}
	return problem.Error()
}

// Problem returns nil if all requirements of the server are met. Otherwise the server must not write, and the error
// names the missing requirements. Anonymous callers may see it.
func (h *Cluster) Problem() error {
	at := h.failures.Load()
	if h.wellSince.Load() == at {
		return nil
	}
	var lacks []requirements.Requirement
	var others []error
	for _, c := range h.contacts {
		if c.need.Optional {
			continue
		}
		err := c.err()
		if missing := (*forbiddenError)(nil); errors.As(err, &missing) {
			lacks = append(lacks, missing.need)
		} else if err != nil {
			others = append(others, err)
		}
	}
	for _, err := range others {
		if errors.As(err, new(*unreachable)) {
			return err
		}
	}
	switch {
	case len(lacks) > 0:
		return h.forbiddenError(lacks)
	case len(others) > 0:
		return others[0]
	}
	if err := h.headersProblem(); err != nil {
		return err
	}
	h.wellSince.Store(at)
	return nil
}

// forbiddenError returns an error that names the missing permissions and the roles that grant them.
func (h *Cluster) forbiddenError(needs []requirements.Requirement) error {
	var given, others []string
	for _, n := range needs {
		switch {
		case n.Binding == requirements.Role{}:
			others = append(others, n.String())
		case !slices.Contains(given, n.Binding.String()):
			given = append(given, n.Binding.String())
		}
	}
	var parts []string
	if len(given) > 0 {
		parts = append(parts, "a binding to the "+strings.Join(given, " and to the "))
	}
	parts = append(parts, others...)
	return fmt.Errorf(
		"the server lacks permissions in the cluster: %s; `%s manifests` prints the required bindings",
		strings.Join(parts, ", "),
		h.config.Server,
	)
}

// AuthorizationUnavailable returns nil if the cluster can authorize callers. Otherwise only requests that Open allows
// may pass.
func (h *Cluster) AuthorizationUnavailable() error {
	for _, c := range h.contacts {
		if c.need.GroupVersionResource != requirements.AccessReviews {
			continue
		}
		err := c.err()
		if missing := (*forbiddenError)(nil); errors.As(err, &missing) {
			return h.forbiddenError([]requirements.Requirement{missing.need})
		}
		return err
	}
	return nil
}

// ClockSkew returns by how much the cluster's clock is ahead of this machine's, measured from responses; 0 if the
// difference is within the accuracy of the measurement.
func (h *Cluster) ClockSkew() time.Duration { return h.clock.current() }

// ClientConfig returns a configuration for other clients of the cluster, whose requests are not retried. Each call
// returns a copy.
func (h *Cluster) ClientConfig() *rest.Config { return rest.CopyConfig(h.way) }

// URL returns the URL of the cluster.
func (h *Cluster) URL() string { return h.url }
