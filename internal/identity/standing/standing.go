// Package standing ends requests that take long, as watches and sessions do, when their caller loses the credential or the
// rights with which they began.
//
// A request is authenticated and authorized once, before it is answered. One that goes on for hours is registered here, and
// the same questions are asked once more every few seconds. Requests with the same credential, caller and rights are one
// group, of which the questions are asked once. Only a definite refusal ends a request: an authenticator or authorizer that
// does not answer, or fails, does not.
package standing

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/credential"
)

const (
	// DefaultPeriod is how long a group waits at most between two checks.
	DefaultPeriod = 5 * time.Second
	// together is how far apart groups may be due that are checked together.
	together = 50 * time.Millisecond
	// maxChecks is how many groups are checked at once. It bounds what servers that are asked get to do.
	maxChecks = 64
	// farewell is how long a request that was ended may take, before its connection is given no more to write.
	farewell = 2 * time.Second
)

// Config is what a Checker asks.
type Config struct {
	// Period is how long a request goes on at most before it is checked; 0 is DefaultPeriod. Each period is shorter than that
	// by a random part, up to a quarter.
	Period time.Duration
	// Authenticator is asked about the credentials of requests, in a context of credential.Again.
	Authenticator authenticator.Request
	// Unavailable reports whether an error of the Authenticator is about what it asks, and not about the credential. nil looks
	// for credential.ErrUnavailable.
	Unavailable func(error) bool
	// ProxiesVouch has callers that a proxy names not be authenticated again: their credential is the proxy's.
	ProxiesVouch bool
	// Authorizer is asked whether callers may still do what they do, in the same context.
	Authorizer authorizer.Authorizer
}

type periodKey struct{}

// WithPeriod returns a context in which servers are made that check requests more often. It is for tests of servers.
func WithPeriod(ctx context.Context, period time.Duration) context.Context {
	return context.WithValue(ctx, periodKey{}, period)
}

// PeriodFrom returns the period of WithPeriod; 0 if there is none.
func PeriodFrom(ctx context.Context) time.Duration {
	period, _ := ctx.Value(periodKey{}).(time.Duration)
	return period
}

// Checker checks requests. Its methods may be called concurrently.
type Checker struct {
	config Config
	slots  chan struct{}
	wake   chan struct{} // a group has become the first that is due

	mu      sync.Mutex
	groups  map[[sha256.Size]byte]*group
	bearers map[[sha256.Size]byte]*bearer
	due     queue
}

// group are requests of which the same questions are asked. The Checker's mu guards it, but for what never changes.
type group struct {
	key          [sha256.Size]byte
	bearer       *bearer
	attributes   []authorizer.Attributes
	impersonates bool
	more         []func(context.Context, user.Info) error

	members []*Stream
	due     time.Time
	at      int  // in the queue; -1 while it is checked
	ended   bool // no request joins it any more
}

// bearer is a credential with its caller, as the first request had it.
type bearer struct {
	key     [sha256.Size]byte
	groups  int // guarded by the Checker's mu
	request *http.Request
	kind    credential.Kind
	user    user.Info

	mu      sync.Mutex
	checked time.Time // when user was confirmed
	now     user.Info // as of then
}

// New returns a Checker, which does nothing until Run is called.
func New(c Config) *Checker {
	c.Period = cmp.Or(c.Period, DefaultPeriod)
	return &Checker{
		config: c, slots: make(chan struct{}, maxChecks), wake: make(chan struct{}, 1),
		groups: map[[sha256.Size]byte]*group{}, bearers: map[[sha256.Size]byte]*bearer{},
	}
}

// Run checks requests until the context ends.
func (c *Checker) Run(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	for {
		c.mu.Lock()
		now := time.Now()
		var ready []*group
		for len(c.due) > 0 && !c.due[0].due.After(now.Add(together)) {
			ready = append(ready, heap.Pop(&c.due).(*group))
		}
		c.mu.Unlock()
		for _, g := range ready {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			checks.Go(func() {
				defer func() { <-c.slots }()
				c.check(ctx, g)
			})
		}
		if !c.wait(ctx) {
			return
		}
	}
}

// wait returns when a group is due, and false when the context has ended.
func (c *Checker) wait(ctx context.Context) bool {
	c.mu.Lock()
	var due <-chan time.Time
	if len(c.due) > 0 {
		timer := time.NewTimer(time.Until(c.due[0].due))
		defer timer.Stop()
		due = timer.C
	}
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-c.wake:
	case <-due:
	}
	return true
}

// schedule puts a group into the queue, or forgets it if it is empty. It needs mu.
func (c *Checker) schedule(g *group, after time.Duration) {
	if len(g.members) == 0 {
		c.forget(g)
		return
	}
	g.due = time.Now().Add(after)
	heap.Push(&c.due, g)
	if g.at == 0 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// pause is until the next check. It differs, so that not all groups of all replicas are checked at once.
func (c *Checker) pause() time.Duration {
	return c.config.Period - time.Duration(rand.Int64N(int64(c.config.Period/4)+1))
}

// forget takes an empty group out of the books. It needs mu.
func (c *Checker) forget(g *group) {
	if c.groups[g.key] == g {
		delete(c.groups, g.key)
	}
	if g.at >= 0 {
		heap.Remove(&c.due, g.at)
	}
	if g.bearer.groups--; g.bearer.groups == 0 && c.bearers[g.bearer.key] == g.bearer {
		delete(c.bearers, g.bearer.key)
	}
}

// check asks about a group, and ends its requests if the answer is a refusal.
func (c *Checker) check(ctx context.Context, g *group) {
	c.mu.Lock()
	ended := g.ended
	c.mu.Unlock()
	if ended {
		c.cut(g)
		return
	}
	asked, cancel := context.WithTimeout(credential.Again(ctx), c.config.Period)
	err := c.refusal(asked, g)
	cancel()
	c.mu.Lock()
	if err == nil || ctx.Err() != nil {
		c.schedule(g, c.pause())
		c.mu.Unlock()
		return
	}
	g.ended = true
	if c.groups[g.key] == g {
		delete(c.groups, g.key) // those that come now have been authenticated since
	}
	members := slices.Clone(g.members)
	ends := make([]context.CancelFunc, len(members))
	for i, s := range members {
		s.cause, ends[i] = err, s.end
	}
	c.schedule(g, farewell)
	c.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Requests end whose caller may not go on",
		"user", g.bearer.user.GetName(), "requests", len(members), "reason", err.Error())
	for _, end := range ends {
		if end != nil {
			end()
		}
	}
}

// cut has requests that should have ended write and read no more. Their clients do not read, or their handlers do not end.
func (c *Checker) cut(g *group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range g.members {
		if s.writer != nil {
			// Best effort: a ResponseWriter other than net/http's may not support deadlines.
			connection := http.NewResponseController(s.writer)
			_ = connection.SetWriteDeadline(time.Unix(1, 0))
			_ = connection.SetReadDeadline(time.Unix(1, 0))
			s.writer = nil
		}
	}
	c.schedule(g, c.config.Period)
}

// refusal is why the requests of a group may not go on; nil if they may, or if that cannot be told now.
func (c *Checker) refusal(ctx context.Context, g *group) error {
	caller, err := c.caller(ctx, g.bearer)
	if err != nil || caller == nil {
		return err
	}
	for _, more := range g.more {
		if err := more(ctx, caller); err != nil {
			return err
		}
	}
	for _, attributes := range g.attributes {
		if !g.impersonates {
			attributes = As(caller, attributes)
		}
		decision, reason, err := c.config.Authorizer.Authorize(ctx, attributes)
		if decision == authorizer.DecisionAllow || err != nil || ctx.Err() != nil {
			continue
		}
		resource := schema.GroupResource{Group: attributes.GetAPIGroup(), Resource: attributes.GetResource()}
		return apierrors.NewForbidden(resource, attributes.GetName(), ended("you may not do this any more", reason))
	}
	return nil
}

// As returns attributes as those of another user.
func As(caller user.Info, attributes authorizer.Attributes) authorizer.Attributes {
	return as{attributes, caller}
}

type as struct {
	authorizer.Attributes
	user user.Info
}

// GetUser implements authorizer.Attributes.
func (a as) GetUser() user.Info { return a.user }

type ending string

// Error implements error.
func (e ending) Error() string { return string(e) }

func ended(what, reason string) error {
	if reason != "" {
		what += ": " + reason
	}
	return ending(what)
}

// caller authenticates a bearer once more, unless that was done a moment ago for another group. It returns the caller, nil if
// that cannot be told now, or an error if it is not the same caller any more.
func (c *Checker) caller(ctx context.Context, b *bearer) (user.Info, error) {
	if b.kind == credential.Proxy && c.config.ProxiesVouch {
		return b.user, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now != nil && time.Since(b.checked) < c.config.Period/2 {
		return b.now, nil
	}
	request := b.request.WithContext(ctx)
	request.Header = b.request.Header.Clone() // authenticators take credentials out of it
	began := time.Now()
	response, ok, err := c.config.Authenticator.AuthenticateRequest(request)
	switch {
	case ctx.Err() != nil, err != nil && c.unavailable(err):
		return nil, nil
	case err != nil || !ok || response == nil:
		// The error may be more than a client should know.
		return nil, apierrors.NewUnauthorized("the credential of this request is not valid any more")
	case !same(response.User, b.user):
		return nil, apierrors.NewUnauthorized("the credential of this request is of another caller now")
	}
	b.checked, b.now = began, response.User
	return b.now, nil
}

func (c *Checker) unavailable(err error) bool {
	if c.config.Unavailable != nil {
		return c.config.Unavailable(err)
	}
	return isUnavailable(err)
}

// same reports whether two callers are the same, with the same groups in any order.
func same(a, b user.Info) bool {
	if a.GetName() != b.GetName() || a.GetUID() != b.GetUID() || len(a.GetGroups()) != len(b.GetGroups()) {
		return false
	}
	if slices.Equal(a.GetGroups(), b.GetGroups()) {
		return true
	}
	return slices.Equal(slices.Sorted(slices.Values(a.GetGroups())), slices.Sorted(slices.Values(b.GetGroups())))
}

// queue has the group that is due next in front.
type queue []*group

// Len implements sort.Interface.
func (q queue) Len() int { return len(q) }

// Less implements sort.Interface.
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

// Swap implements sort.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	g := x.(*group)
	g.at = len(*q)
	*q = append(*q, g)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	g := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	g.at = -1
	return g
}
