package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/base/await"

	clocks "k8s.io/utils/clock"
)

const (
	// patience is how long a cluster may fail to respond, after it has responded before, until the server reports it.
	// kube-apiservers are restarted one after another, and cached objects remain valid meanwhile.
	patience = time.Minute
	// settling is how long a 403 is ignored after a cluster becomes reachable again: a kube-apiserver answers 403
	// after its start until it has read its roles.
	settling = 10 * time.Second
	// firstRetry and lastRetry are the bounds of the exponential backoff of failed requests.
	firstRetry, lastRetry = 250 * time.Millisecond, 5 * time.Second
)

// contact is the state of the requests for one requirement.
type contact struct {
	need requirements.Requirement
	// synced reports whether all objects have been read. It is set before use; nil means always true.
	synced func() bool
	// changed is called with every failure and every change.
	changed func()
	// failed wakes the goroutine that repeats reviews.
	failed chan struct{}

	mu       sync.Mutex
	answered bool // a request has succeeded before
	problem  error
	since    time.Time
	refused  time.Time // time of the first 403 after a failure to respond; else zero
}

// forbiddenError is the problem of a missing permission.
type forbiddenError struct{ need requirements.Requirement }

func (e *forbiddenError) Error() string { return e.need.String() }

func isForbidden(problem error) bool {
	_, ok := problem.(*forbiddenError)
	return ok
}

// unreachable is the problem of a cluster that does not respond.
type unreachable struct {
	cluster string
	err     error
}

func (e *unreachable) Error() string {
	return fmt.Sprintf("the cluster %s cannot be reached: %v", e.cluster, e.err)
}
func (e *unreachable) Unwrap() error { return e.err }

// responseError is the problem of a cluster that responds incorrectly.
type responseError struct{ text string }

func (e *responseError) Error() string { return e.text }

var errNotAsked = &responseError{"the cluster has not answered yet"}

func (c *contact) set(problem error) {
	c.mu.Lock()
	first := !c.answered
	was := c.problem
	c.problem = problem
	if !isForbidden(problem) {
		c.refused = time.Time{}
	} else if was != nil && !isForbidden(was) {
		c.refused = time.Now()
	}
	if problem == nil {
		c.answered, c.since = true, time.Time{}
	} else if c.since.IsZero() {
		c.since = time.Now()
	}
	c.mu.Unlock()
	if problem == nil && was == nil && !first {
		return
	}
	c.changed()
	if problem != nil {
		await.Notify(c.failed)
	}
}

// err returns the error because of which the server cannot rely on the cluster. It returns nil for a limited time if
// a cluster that has responded before does not respond.
func (c *contact) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.problem == nil && !c.answered:
		return errNotAsked
	case c.problem == nil:
		if c.synced != nil && !c.synced() {
			return &responseError{"reading " + c.need.GroupResource().String() + " of the cluster"}
		}
		return nil
	}
	refused := isForbidden(c.problem) && (c.refused.IsZero() || time.Since(c.refused) > settling)
	if !refused && c.answered && time.Since(c.since) < patience {
		return nil
	}
	return c.problem
}

// last returns the problem of the last response, or nil.
func (c *contact) last() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// well reports whether the last response was successful.
func (c *contact) well() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered && c.problem == nil
}

// observer is a transport to the cluster that observes the outcome of requests, and retries reads until they succeed,
// so that the callers need neither retry nor log.
type observer struct {
	http.RoundTripper
	contact *Cluster
}

func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	c := o.contact.contactOf(r)
	hold := c != nil && c.need.Watched() || isSchema(r)
	for retry := retries(); ; {
		sent := time.Now()
		response, err := o.RoundTripper.RoundTrip(r)
		if err == nil {
			o.contact.clock.observe(response.Header.Get("Date"), sent, time.Now())
		}
		problem, known := o.problem(r, c, response, err)
		if known && c != nil {
			c.set(problem)
		}
		if problem == nil || !hold || r.Context().Err() != nil {
			return response, err
		}
		if response != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
			_ = response.Body.Close()
		}
		// Jitter: many servers, and many reads of each, must not retry at the same moment.
		delay := retry()
		if !await.Sleep(r.Context(), clocks.RealClock{}, delay/2+rand.N(delay/2)) {
			return nil, context.Cause(r.Context())
		}
	}
}

// problem returns the problem that a response reveals; known is false if it reveals nothing.
func (o observer) problem(r *http.Request, c *contact, response *http.Response, err error) (problem error, known bool) {
	cluster := r.URL.Scheme + "://" + r.URL.Host
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		return nil, false // the caller has canceled
	case err != nil:
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return &unreachable{cluster, err}, true
	case c == nil: // a schema
		return nil, false
	case response.StatusCode == http.StatusForbidden:
		return &forbiddenError{c.need}, true
	case response.StatusCode == http.StatusUnauthorized:
		return &responseError{"the cluster " + cluster + " does not accept the server's credentials (401)"}, true
	case response.StatusCode == http.StatusNotFound:
		text := "the cluster serves no " + c.need.GroupResource().String() + " in " + c.need.Version
		if plugin := c.need.For; c.need.Group == requirements.AdmissionGroup {
			text += "; to run without it, disable the admission plugin " + plugin
		}
		return &responseError{text}, true
	case response.StatusCode == http.StatusTooManyRequests,
		response.StatusCode == http.StatusInternalServerError, response.StatusCode == http.StatusBadGateway,
		response.StatusCode == http.StatusServiceUnavailable:
		// Except 504, with which a read learns that its resource version is in the future.
		return &responseError{fmt.Sprintf("the cluster %s answers with status %d to %s", cluster, response.StatusCode, r.URL.Path)}, true
	}
	return nil, true
}

// contactOf returns the contact of a request; nil if the request is not tracked. The read of a single namespace,
// which is made when a cache may be stale, is not tracked, because its result does not apply to lists.
func (h *Cluster) contactOf(r *http.Request) *contact {
	for _, c := range h.contacts {
		if c.need.Watched() == (r.Method == http.MethodGet) && isCollection(r, c.need) &&
			(c.need.Name == "" || strings.Contains(r.URL.RawQuery, c.need.Name)) {
			return c
		}
	}
	return nil
}

func isCollection(r *http.Request, n requirements.Requirement) bool {
	return strings.HasSuffix(r.URL.Path, n.Path())
}

// isSchema reports whether a request is one of MutatingAdmissionPolicy for schemas, which it sends every few seconds.
func isSchema(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/openapi/v3")
}

// clock compares the cluster's clock with this machine's, because both determine whether certificates are valid.
type clock struct {
	mu   sync.Mutex
	skew time.Duration
	told bool
	tell func(skew time.Duration)
}

// tolerance is the difference of the clocks above which it is reported.
const tolerance = time.Minute

func (c *clock) observe(date string, sent, received time.Time) {
	cluster, err := http.ParseTime(date)
	if err != nil {
		return
	}
	// The header has a resolution of seconds, and was written between sent and received.
	skew := time.Duration(0)
	switch {
	case cluster.Before(sent.Add(-time.Second)):
		skew = cluster.Sub(sent)
	case cluster.After(received):
		skew = cluster.Sub(received)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew = skew
	if far := skew.Abs() > tolerance; far != c.told {
		c.told = far
		if far {
			c.tell(skew)
		}
	}
}

func (c *clock) current() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skew
}
