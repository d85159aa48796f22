// Package garbage collects garbage by owner references, as Kubernetes documents it: an object
// whose owners have all gone is deleted; one that is deleted in the foreground stays until its
// dependents have gone; and the dependents of one that is deleted as an orphan maker lose their
// reference to it.
//
// The collector follows the metadata of all kinds, which come and go, in a graph. The graph is
// always a little behind, so it only says which objects are worth looking at. Whether one goes
// is decided by what the server answers then, and carried out on the condition that the object
// has not changed since: an object with an owner that is alive is never deleted. An owner is
// absent only if the server says so of the object itself; if its kind is not served, or does not
// answer, what depends on it stays.
//
// All state is in the objects, so that a collector goes on where another one ended, however it
// ended.
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
	// defaultInterval is between two questions for kinds that nothing gave cause for. They cost
	// next to nothing while the kinds stay the same.
	defaultInterval = 10 * time.Second
	// firstQuestion is how soon after a cause kinds are asked for again. Discovery is a little
	// behind what defines kinds; intervals double from there.
	firstQuestion = 20 * time.Millisecond
	// listPatience is how long the collector waits at its start for lists that do not end,
	// before it begins without them. It does not wait for those that fail.
	listPatience = 30 * time.Second
	// lingering is how long a kind that is not served any more is followed, so that the last
	// events of a custom resource's objects, which go with it, are not missed.
	lingering = 30 * time.Second

	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Minute
)

// Options are what a collector may be told. The zero value is ready to use.
type Options struct {
	// Changed says that the server's kinds may have changed. It is not needed for what is
	// defined by objects, CustomResourceDefinitions and APIServices. Nil is never.
	Changed <-chan struct{}
	// Interval is the longest time between two questions for kinds; 0 is ten seconds.
	Interval time.Duration
	// Workers is how many objects are dealt with at a time; 0 is four.
	Workers int
}

// Collector collects the garbage of one server.
type Collector struct {
	options Options
	// ask asks for kinds, and askForAll misses none.
	ask, askForAll func(context.Context) (*resources.Set, error)
	client         metadata.Interface
	events         corev1client.EventsGetter // nil if none are wanted
	graph          *graph
	queue          worker.Queue[id]

	// defined says that an object that defines kinds has changed.
	defined chan struct{}

	mu      sync.Mutex
	sources map[schema.GroupResource]*source
	running sync.WaitGroup
}

// New makes a collector of the garbage of a server. The client may read, patch and delete all
// that is there; it has no rate limit of its own, or collecting is slow.
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
		sources: map[schema.GroupResource]*source{},
	}
}

// Run collects garbage until ctx is done, and then returns nil. Errors are logged and tried
// again. It is called once.
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

// definesKinds tells whether objects of a resource make the server serve others.
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
		klog.FromContext(ctx).Error(err, "The garbage collector does not know which kinds there are now")
	case c.setKinds(kinds):
		c.follow(ctx, kinds)
	}
}

// setKinds takes over what discovery says. It tells whether that is new.
func (c *Collector) setKinds(kinds *resources.Set) bool {
	if c.graph.currentKinds() == kinds {
		return false
	}
	for _, i := range c.graph.setKinds(kinds) {
		c.queue.Add(i)
	}
	return true
}

// follow begins to observe the kinds that are new, and ends with those that are gone. Those of
// which discovery cannot tell stay.
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

// collects tells whether objects of the resource are owners or owned. Events are neither: there
// are many, and they end by themselves.
func collects(r resources.Resource) bool {
	return r.Can("delete", "list", "watch") && (r.Resource != "events" || r.Group != "" && r.Group != "events.k8s.io")
}

// waitForSources waits until the graph is as complete as it can be for now.
func (c *Collector) waitForSources(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	c.mu.Lock()
	var all []*source
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

// observed takes over what is to be looked at because of an event of a resource.
func (c *Collector) observed(resource schema.GroupResource, all []id) {
	if definesKinds(resource) {
		select {
		case c.defined <- struct{}{}:
		default: // it is said already
		}
	}
	for _, i := range all {
		c.queue.Add(i)
	}
}
