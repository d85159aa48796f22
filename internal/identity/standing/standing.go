// Package standing ends long-running requests, such as watches and sessions, when their caller loses the credential
// or the rights with which they began.
//
// A request is authenticated and authorized once, before it is answered. Long-running requests are registered here,
// and both checks are repeated every few seconds. Requests with the same credential, caller and rights form a group,
// which is checked once. Only a definite refusal ends a request; an authenticator or authorizer that fails or does
// not respond does not.
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
	// DefaultPeriod is the maximum time between two checks of a group.
	DefaultPeriod = 5 * time.Second
	// together is the time span of due groups that are checked together.
	together = 50 * time.Millisecond
	// maxChecks is the maximum number of concurrent checks. It bounds the load on authentication and authorization
	// servers.
	maxChecks = 64
	// farewell is how long a request may take to finish after its end, before its connection is cut.
	farewell = 2 * time.Second
)

// Config configures a Checker.
type Config struct {
	// Period is the maximum time before a request is checked again; 0 means DefaultPeriod. Each period is shortened
	// by a random part of up to a quarter.
	Period time.Duration
	// Authenticator verifies the credentials of requests, in a context of credential.WithoutCaches.
	Authenticator authenticator.Request
	// Unavailable reports whether an error of the Authenticator is a failure to verify, and not a refusal of the
	// credential. nil checks for credential.ErrUnavailable.
	Unavailable func(error) bool
	// ProxiesVouch skips authentication of callers that a proxy names, since the credential belongs to the proxy.
	ProxiesVouch bool
	// Authorizer repeats the authorization of requests, in the same context.
	Authorizer authorizer.Authorizer
}

type periodKey struct{}

// WithPeriod returns a context for creating servers that check requests more often. It is for tests of servers.
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
	wake   chan struct{} // signals that a group has become the first due one

	mu      sync.Mutex
	groups  map[[sha256.Size]byte]*group
	bearers map[[sha256.Size]byte]*bearer
	due     queue
}

// group is a set of requests that are checked together. Its mutable fields are guarded by the Checker's mu.
type group struct {
	key          [sha256.Size]byte
	bearer       *bearer
	attributes   []authorizer.Attributes
	impersonates bool
	more         []func(context.Context, user.Info) error

	members []*Stream
	due     time.Time
	at      int  // index in the queue; -1 during a check
	ended   bool // no more requests may join
}

// bearer is a credential with its caller at the time of the first request.
type bearer struct {
	key     [sha256.Size]byte
	groups  int // guarded by the Checker's mu
	request *http.Request
	kind    credential.Kind
	user    user.Info

	mu      sync.Mutex
	checked time.Time // time of the last successful check
	current user.Info // the user at that time
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

// wait waits until a group is due. It returns false when the context has ended.
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

// schedule queues a group, or forgets it if it is empty. The caller holds mu.
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

// pause returns the time until the next check. It is random, so that groups and replicas do not all check at once.
func (c *Checker) pause() time.Duration {
	return c.config.Period - time.Duration(rand.Int64N(int64(c.config.Period/4)+1))
}

// forget removes an empty group. The caller holds mu.
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

// check checks a group, and ends its requests after a refusal.
func (c *Checker) check(ctx context.Context, g *group) {
	c.mu.Lock()
	ended := g.ended
	c.mu.Unlock()
	if ended {
		c.cut(g)
		return
	}
	asked, cancel := context.WithTimeout(credential.WithoutCaches(ctx), c.config.Period)
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
		delete(c.groups, g.key) // new requests have been authenticated after the refusal
	}
	members := slices.Clone(g.members)
	ends := make([]context.CancelFunc, len(members))
	for i, s := range members {
		s.cause, ends[i] = err, s.end
	}
	c.schedule(g, farewell)
	c.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Ending requests whose caller is no longer allowed",
		"user", g.bearer.user.GetName(), "requests", len(members), "reason", err.Error())
	for _, end := range ends {
		if end != nil {
			end()
		}
	}
}

// cut sets deadlines in the past on the connections of ended requests whose clients do not read or whose handlers do
// not return.
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

// refusal returns the reason why the requests of a group must end; nil if they may continue, or if the check failed.
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
		return apierrors.NewForbidden(resource, attributes.GetName(), ended("you are no longer allowed to do this", reason))
	}
	return nil
}

// As returns attributes with another user.
func As(caller user.Info, attributes authorizer.Attributes) authorizer.Attributes {
	return withUser{attributes, caller}
}

type withUser struct {
	authorizer.Attributes
	user user.Info
}

// GetUser implements authorizer.Attributes.
func (a withUser) GetUser() user.Info { return a.user }

type ending string

// Error implements error.
func (e ending) Error() string { return string(e) }

func ended(what, reason string) error {
	if reason != "" {
		what += ": " + reason
	}
	return ending(what)
}

// caller authenticates a bearer again, unless another group has just done so. It returns the caller, nil if the check
// failed, or an error if the credential is refused or belongs to another caller.
func (c *Checker) caller(ctx context.Context, b *bearer) (user.Info, error) {
	if b.kind == credential.Proxy && c.config.ProxiesVouch {
		return b.user, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil && time.Since(b.checked) < c.config.Period/2 {
		return b.current, nil
	}
	request := b.request.WithContext(ctx)
	request.Header = b.request.Header.Clone() // authenticators remove credentials from the header
	began := time.Now()
	response, ok, err := c.config.Authenticator.AuthenticateRequest(request)
	switch {
	case ctx.Err() != nil, err != nil && c.unavailable(err):
		return nil, nil
	case err != nil || !ok || response == nil:
		// The original error may contain details that the client must not see.
		return nil, apierrors.NewUnauthorized("the credential of this request is no longer valid")
	case !same(response.User, b.user):
		return nil, apierrors.NewUnauthorized("the credential of this request now belongs to another user")
	}
	b.checked, b.current = began, response.User
	return b.current, nil
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

// queue is a heap of groups, the next due group first.
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
