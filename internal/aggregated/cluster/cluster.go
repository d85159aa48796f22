// Package cluster is what an aggregated server reads from the kube-apiserver in front of
// it, its cluster, and asks of it: who sends a request, what the sender may do, whether
// namespaces live, which webhooks and policies a write has to pass, and how requests
// share the server.
//
// The parts are upstream's. What is ours is that they tolerate a cluster that is
// unavailable: the server starts when the cluster cannot be reached or does not permit something, and finds
// out by the answers. Until all that it needs is there, it is not ready and refuses
// writes, and says which permission is missing; no check is ever skipped, and nothing has
// to be restarted when the permission comes.
//
// Reads are repeated below client-go, in the transport (observer): the caches wait
// instead of failing, and what is wrong is logged once instead of by each of them.
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

// Config is what a Cluster is made of.
type Config struct {
	Options Options
	// Server names the server in what it says: "NAME manifests" prints bindings.
	Server string
	// Admission says which of the plugins run that take the cluster's objects.
	Admission config.AdmissionOptions
	// ClientCAFile holds authorities of client certificates. It replaces the cluster's.
	ClientCAFile string
	// RequestHeader replaces, if it names authorities, what the cluster says about the headers
	// in which it names callers.
	RequestHeader config.RequestHeaderOptions
	// Version is the Kubernetes version that admission plugins see.
	Version compatibility.EffectiveVersion
	// Own knows the tokens of the server's own clients, which the cluster does not. Nil is
	// none.
	Own authenticator.Token
	// InFlight is how many requests the server handles at once, that are queued by the cluster's
	// priority levels; none are queued if it is 0.
	InFlight int
}

// Cluster is a server's cluster. Its methods may be called concurrently.
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
	// stopped ends what plugins do in the background.
	stopped   chan struct{}
	stopOnce  sync.Once
	failures  atomic.Int64 // counts what may change Problem
	wellSince atomic.Int64 // one more than failures when there was none
	wake      chan struct{}
	ran       atomic.Bool
}

type runner interface {
	Run(ctx context.Context, workers int)
}

// Open reads the kubeconfigs and files, and asks the cluster nothing yet. Close must be
// called, after Run if that was called.
func Open(c Config) (*Cluster, error) {
	ways, err := loadConfigs(c.Options)
	if err != nil {
		return nil, err
	}
	h := &Cluster{config: c, url: ways.core.Host, way: ways.core, stopped: make(chan struct{}), wake: make(chan struct{}, 1)}
	h.clock.tell = func(skew time.Duration) {
		klog.Background().
			Error(nil, "The cluster's clock and this one are far apart: certificates that are new or about to expire are refused", "skew",
				skew.Round(time.Second))
	}
	for _, need := range requirements.Of(config.Options{Cluster: c.Options, Admission: c.Admission, ClientCAFile: c.ClientCAFile,
		RequestHeader: c.RequestHeader, PriorityAndFairness: new(c.InFlight > 0)}) {
		h.contacts = append(h.contacts, &contact{need: need, changed: h.change, failed: make(chan struct{}, 1)})
	}
	h.failures.Add(1) // nothing has been asked
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

// connect makes the clients. They do not limit themselves: the server answers no faster
// than its cluster does.
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
		// The observer is above what adds credentials, so that a read that it repeats for
		// hours does not come with those of hours ago.
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

// Close ends what Open started.
func (h *Cluster) Close() {
	h.stopOnce.Do(func() { close(h.stopped) })
	if h.ran.Load() {
		return
	}
	// Upstream's controllers hold queues from the beginning, and release them at the
	// end of their run.
	ended, end := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	end()
	for _, r := range h.runners {
		r.Run(ended, 1)
	}
	if h.flowControl != nil {
		// The server that it was for runs it, if that has run.
		_ = h.flowControl.Run(h.stopped) // it says that it has stopped
	}
}

// Run keeps what was read of the cluster current until the context ends.
func (h *Cluster) Run(ctx context.Context) {
	h.ran.Store(true)
	var all sync.WaitGroup
	defer all.Wait()
	// Upstream's controllers report an error if they are stopped before the cluster has
	// answered.
	silent := klog.NewContext(ctx, logr.Discard())
	for _, r := range h.runners {
		all.Go(func() { r.Run(silent, 1) })
	}
	all.Go(func() { h.informers.run(ctx) })
	for _, c := range h.contacts {
		switch c.need.GroupVersionResource {
		case requirements.TokenReviews:
			// It has no token: that it is refused as invalid proves the permission.
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

// ask repeats a review until the cluster answers, and again whenever it did not.
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

// retries returns the delays before requests are repeated, one after the other.
func retries() func() time.Duration {
	return wait.Backoff{Duration: firstRetry, Factor: 2, Cap: lastRetry, Steps: math.MaxInt}.DelayFunc()
}

// change notes that Problem may have another answer.
func (h *Cluster) change() {
	h.failures.Add(1)
	await.Notify(h.wake)
}

// report logs what is wrong, once for each thing, and when all is well again.
func (h *Cluster) report(ctx context.Context) {
	logger := klog.FromContext(ctx)
	last, flow := "", true
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		// Several answers come together.
		if !await.Sleep(ctx, clocks.RealClock{}, time.Second) {
			return
		}
		problem := h.Problem()
		switch kind := kindOf(problem); {
		case kind == last:
		case problem == nil:
			logger.Info("The cluster gives all that the server needs", "cluster", h.url)
			last = kind
		default:
			logger.Error(problem, "Not ready: the cluster does not give what the server needs; trying again", "cluster", h.url)
			last = kind
		}
		if ok := !h.flowTroubled(); ok != flow {
			if flow = ok; !ok {
				logger.Error(
					nil,
					"Priority and fairness is left out: the cluster does not permit list and watch on "+requirements.FlowSchemas.GroupResource().
						String()+
						" and "+requirements.PriorityLevels.Resource,
					"cluster",
					h.url,
				)
			}
		}
		if errors.As(problem, new(*unwell)) {
			h.change() // reading ends without a request
		}
	}
}

// kindOf is the problem without what differs from one try to the next.
func kindOf(problem error) string {
	if u := (*unreachable)(nil); errors.As(problem, &u) {
		return "unreachable " + u.cluster
	}
	if problem == nil {
		return ""
	}
	return problem.Error()
}

// Problem is nil if the server has all that it needs of its cluster. If not, it may not
// write, and the error says what is missing, in words that anonymous callers may see.
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

// forbiddenError names the permissions that are missing, and what gives them.
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
		"the cluster does not permit what the server needs; missing: %s; `%s manifests` prints the bindings",
		strings.Join(parts, ", "),
		h.config.Server,
	)
}

// AuthorizationUnavailable is nil if the cluster can be asked what callers may do. If not, only what
// Open allows may pass.
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

// ClockSkew is by how much the cluster's clock is ahead of this one, by the answers, or 0 if
// the difference is within the accuracy of the measurement.
func (h *Cluster) ClockSkew() time.Duration { return h.clock.current() }

// ClientConfig returns a configuration for other clients of the cluster, whose requests are
// not retried. Each call returns a copy.
func (h *Cluster) ClientConfig() *rest.Config { return rest.CopyConfig(h.way) }

// URL is where the cluster is.
func (h *Cluster) URL() string { return h.url }
