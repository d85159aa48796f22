// Package garbage implements garbage collection by owner references as Kubernetes documents it. An object whose
// owners have all gone is deleted. An object in foreground deletion stays until its dependents have gone. The
// dependents of an object that is deleted with the policy Orphan lose their reference to it.
//
// The collector follows the metadata of all kinds, whose set changes, in a graph. The graph lags behind the server,
// so it only determines which objects to check. Whether an object is deleted is decided by current reads, and the
// deletion is conditional on the object not having changed since: an object with an existing owner is never deleted.
// An owner is absent only if the server reports that for the object itself. While its kind is not served, or does not
// respond, dependents stay.
//
// All state is in the objects, so a new collector continues where another one ended, for whatever reason that ended.
package garbage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/worker"
	"github.com/annexapi/annex/internal/standalone/resources"
)

const (
	defaultWorkers = 4
	// defaultInterval is the interval of discovery without a cause. It costs next to nothing while the kinds stay the
	// same.
	defaultInterval = 10 * time.Second
	// firstQuestion is the first interval of discovery after a cause. Discovery lags slightly behind the objects that
	// define kinds; the interval doubles each time.
	firstQuestion = 20 * time.Millisecond
	// listPatience is how long the collector waits at its start for lists that do not complete. It does not wait for
	// failed lists.
	listPatience = 30 * time.Second
	// lingering is how long a kind that is no longer served is followed. When a custom resource is removed, its
	// objects are removed as well, and their last events must not be missed.
	lingering = 30 * time.Second

	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Minute
)

// Options configure a collector. The zero value is ready to use.
type Options struct {
	// Changed signals that the server's kinds may have changed. It is not needed for kinds that objects define, which
	// are CustomResourceDefinitions and APIServices. Nil means no signals.
	Changed <-chan struct{}
	// Interval is the maximum time between two discoveries; 0 means ten seconds.
	Interval time.Duration
	// Workers is the number of objects that are handled concurrently; 0 means four.
	Workers int
}

// Collector collects the garbage of one server.
type Collector struct {
	options Options
	// ask discovers kinds. askForAll is complete: its result also names kinds that discovery does not show yet.
	ask, askForAll func(context.Context) (*resources.Set, error)
	client         metadata.Interface
	events         corev1client.EventsGetter // nil if no events are wanted
	graph          *graph
	queue          worker.Queue[id]

	// defined signals that an object that defines kinds has changed.
	defined chan struct{}

	mu      sync.Mutex
	sources map[schema.GroupResource]*observer
	running sync.WaitGroup
}

// New returns a collector for a server. The client needs the rights to read, patch and delete all objects. It should
// have no rate limit, which would slow the collector down.
func New(client *rest.Config, options Options) (*Collector, error) {
	discovery, err := resources.NewClient(client)
	if err != nil {
		return nil, err
	}
	all, err := metadata.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("client for metadata: %w", err)
	}
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("client for events: %w", err)
	}
	if options.Interval == 0 {
		options.Interval = defaultInterval
	}
	if options.Workers == 0 {
		options.Workers = defaultWorkers
	}
	c := newCollector(all, worker.NewQueue[id](firstRetry, lastRetry))
	c.events = core
	c.options, c.ask, c.askForAll = options, discovery.Ask, discovery.AskForAll
	return c, nil
}

func newCollector(client metadata.Interface, queue worker.Queue[id]) *Collector {
	return &Collector{
		client:  client,
		graph:   newGraph(),
		defined: make(chan struct{}, 1),
		queue:   queue,
		sources: map[schema.GroupResource]*observer{},
	}
}

// Run collects garbage until ctx is done, and then returns nil. Errors are logged and retried. It must be called
// once.
func (c *Collector) Run(ctx context.Context) error {
	defer c.running.Wait()
	defer c.queue.ShutDown()
	c.askForKinds(ctx)
	c.running.Go(func() { c.followKinds(ctx) })
	c.waitForSources(ctx)
	worker.Run(ctx, c.queue, c.options.Workers, c.process)
	return nil
}

func (c *Collector) followKinds(ctx context.Context) {
	changed, interval := c.options.Changed, firstQuestion
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changed:
			if !open {
				changed = nil
			}
			interval = firstQuestion
		case <-c.defined:
			interval = firstQuestion
		case <-timer.C:
			interval = min(2*interval, c.options.Interval)
		}
		c.askForKinds(ctx)
		timer.Reset(interval)
	}
}

// definesKinds reports whether objects of a resource define other kinds.
func definesKinds(resource schema.GroupResource) bool {
	switch resource {
	case schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}:
		return true
	}
	return false
}

func (c *Collector) askForKinds(ctx context.Context) {
	kinds, err := c.ask(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		klog.FromContext(ctx).Error(err, "The garbage collector cannot read the current kinds")
	case c.setKinds(kinds):
		c.follow(ctx, kinds)
	}
}

// setKinds sets the discovered kinds, and reports whether they have changed.
func (c *Collector) setKinds(kinds *resources.Set) bool {
	if c.graph.currentKinds() == kinds {
		return false
	}
	for _, i := range c.graph.setKinds(kinds) {
		c.queue.Add(i)
	}
	return true
}

// follow starts to observe new kinds, and stops to observe removed ones. Kinds whose discovery failed are kept.
func (c *Collector) follow(ctx context.Context, kinds *resources.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	served := map[schema.GroupResource]bool{}
	for _, resource := range kinds.All() {
		if !collects(resource) {
			continue
		}
		name := resource.GroupResource()
		served[name] = true
		s := c.sources[name]
		if s != nil && s.resource == resource.GroupVersionResource && !s.leaving.Load() {
			continue
		}
		if s != nil {
			s.cancel()
		}
		c.sources[name] = c.observe(ctx, resource.GroupVersionResource)
	}
	for name, s := range c.sources {
		if !served[name] && kinds.Failed()[s.resource.GroupVersion()] == nil {
			s.leave()
		}
	}
}

// collects reports whether objects of the resource can be owners or dependents. Events are excluded: they are many,
// and expire by themselves.
func collects(r resources.Resource) bool {
	return r.Can("delete", "list", "watch") && (r.Resource != "events" || r.Group != "" && r.Group != "events.k8s.io")
}

// waitForSources waits until the graph is as complete as currently possible.
func (c *Collector) waitForSources(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	c.mu.Lock()
	var all []*observer
	for _, s := range c.sources {
		all = append(all, s)
	}
	c.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.tried:
		case <-ctx.Done():
		}
	}
}

// observed queues the objects that an event of a resource affects.
func (c *Collector) observed(resource schema.GroupResource, all []id) {
	if definesKinds(resource) {
		select {
		case c.defined <- struct{}{}:
		default: // a signal is already pending
		}
	}
	for _, i := range all {
		c.queue.Add(i)
	}
}
