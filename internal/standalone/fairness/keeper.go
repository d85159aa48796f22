package fairness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	flowclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

const (
	// fieldManager is the field manager of upstream's servers for these objects.
	fieldManager = "api-priority-and-fairness-config-producer-v1"
	// interval is the interval of the checks of the objects.
	interval = time.Minute
)

// Keeper contains the flow control of one server, and maintains the objects that every server has.
type Keeper struct {
	control   utilflowcontrol.Interface
	client    flowclient.FlowcontrolV1Interface
	informers *factory
	clock     clock.Clock
	// bootstrapped is closed when Bootstrap is done.
	bootstrapped chan struct{}
	ran          atomic.Bool
	ended        ended // is set when the context of Run ends
}

// NewKeeper returns the keeper of a server that handles inFlight requests concurrently. The requests of client must
// be exempt from priority levels. Close must be called.
func NewKeeper(client *rest.Config, inFlight int) (*Keeper, error) {
	config := rest.CopyConfig(client)
	config.QPS = -1
	c, err := flowclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of flow schemas: %w", err)
	}
	k := &Keeper{client: c, informers: newFactory(c), clock: clock.RealClock{}, bootstrapped: make(chan struct{})}
	writing, err := flowclient.NewForConfig(k.ended.wrap(config))
	if err != nil {
		return nil, fmt.Errorf("client of flow schemas: %w", err)
	}
	k.control = utilflowcontrol.New(k.informers, writing, inFlight)
	return k, nil
}

// FlowControl queues requests by the existing flow schemas and priority levels. The server runs it.
func (k *Keeper) FlowControl() utilflowcontrol.Interface { return prompt{k.control, k.informers} }

// prompt starts as soon as its objects have been read, for which upstream checks only every 100 ms.
type prompt struct {
	utilflowcontrol.Interface
	informers *factory
}

// Run implements utilflowcontrol.Interface.
func (p prompt) Run(stopped <-chan struct{}) error {
	p.informers.waitForSync(wait.ContextForChannel(stopped))
	return p.Interface.Run(stopped)
}

// Bootstrapped returns a channel that is closed when all objects exist that every server has, and requests are queued
// by them.
func (k *Keeper) Bootstrapped() <-chan struct{} { return k.bootstrapped }

// Bootstrap returns nil when the flow schemas and priority levels of every kube-apiserver exist, and requests are
// queued by them. Failures are logged and retried until ctx is done; Bootstrap then returns the last error. It must
// be called once, while Run and the flow control run.
func (k *Keeper) Bootstrap(ctx context.Context) error {
	if !k.informers.waitForSync(ctx) {
		return fmt.Errorf("read flow schemas: %w", context.Cause(ctx))
	}
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 12, Cap: 10 * time.Second}.DelayFunc()
	for {
		overtaken, err := k.ensure(ctx)
		if overtaken && err == nil {
			// The faster writer is the flow control, which writes the status, or another replica.
			if !await.Sleep(ctx, k.clock, 10*time.Millisecond) {
				return context.Cause(ctx)
			}
			continue
		}
		if err == nil {
			err = k.inForce(ctx)
		}
		if err == nil {
			close(k.bootstrapped)
			return nil
		}
		if !await.Sleep(ctx, k.clock, backoff()) {
			return err
		}
		klog.FromContext(ctx).Error(err, "Some default flow schemas or priority levels are missing, trying again")
	}
}

// inForce waits until requests are queued by the existing objects. Until the flow control has read them, it uses two
// built-in ones, which have no UIDs.
func (k *Keeper) inForce(ctx context.Context) error {
	for _, group := range []string{user.SystemPrivilegedGroup, user.AllAuthenticated} {
		for pause := time.Millisecond; !k.queues(ctx, group); pause = min(2*pause, 16*time.Millisecond) {
			if !await.Sleep(ctx, k.clock, pause) {
				return fmt.Errorf("wait for flow schemas: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

// queues reports whether an existing flow schema would queue a request of a group's member. It sends no request.
func (k *Keeper) queues(ctx context.Context, group string) (exists bool) {
	member := utilflowcontrol.RequestDigest{
		RequestInfo: &request.RequestInfo{Path: "/", Verb: "get"},
		User:        &user.DefaultInfo{Name: "annex:fairness", Groups: []string{group}},
	}
	k.control.Handle(ctx, member, func(schema *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
		exists = schema.UID != ""
	}, func() fcrequest.WorkEstimate { return fcrequest.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() {})
	return exists
}

// ensure creates priority levels before the flow schemas that refer to them.
func (k *Keeper) ensure(ctx context.Context) (overtaken bool, err error) {
	levels, err := priorityLevels(k.client.PriorityLevelConfigurations(), k.informers.priorityLevels).ensure(ctx)
	if err != nil {
		return false, err
	}
	schemas, err := flowSchemas(k.client.FlowSchemas(), k.informers.flowSchemas).ensure(ctx)
	return levels || schemas, err
}

// Run reads the objects until the context ends. After Bootstrap, it restores the bootstrap objects once a minute.
func (k *Keeper) Run(ctx context.Context) error {
	k.ran.Store(true)
	context.AfterFunc(ctx, func() { k.ended.Store(true) })
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { k.informers.run(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case <-k.bootstrapped:
	}
	for await.Sleep(ctx, k.clock, interval) {
		if _, err := k.ensure(ctx); err != nil && !errors.Is(err, context.Canceled) {
			klog.FromContext(ctx).Error(err, "Some default flow schemas or priority levels differ from their definition, "+
				"trying again", "after", interval)
		}
	}
	return nil
}

// Close releases the resources of the flow control. It must not be called while Run runs.
func (k *Keeper) Close() {
	if k.ran.Load() {
		return // the flow control has run as well, and has released them
	}
	ended := make(chan struct{})
	close(ended)
	_ = k.control.Run(ended) // always returns an error when it has stopped
}
