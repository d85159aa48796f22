package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The pace of a well-behaved caller: a round of six requests each interval. A request that takes longer than
// mostPatience has failed.
const (
	interval     = 120 * time.Millisecond
	mostPatience = 10 * time.Second
	// Both callers change this number of objects, whose names begin alike. They hold a table, because servers expect
	// bodies with many separators to need much memory.
	shared     = 4
	sharedName = "shared-"
)

// sample is one request of a well-behaved caller.
type sample struct {
	begun  time.Time
	took   time.Duration
	failed string // the reason; empty if it has not
}

// caller is a well-behaved caller. One goroutine runs it.
type caller struct {
	t       *target
	as      credential
	client  *http.Client
	history *history
	round   int

	mu      sync.Mutex
	samples []sample
	// seen is the beginning of the latest answered request.
	seen time.Time
}

func newCaller(t *target, as credential, h *history) *caller {
	return &caller{t: t, as: as, client: t.client(as, 1), history: h}
}

// run sends requests until the context ends.
func (c *caller) run(ctx context.Context) {
	defer c.client.CloseIdleConnections()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.once(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// once creates, reads, changes, lists and deletes an object, and reads or changes a shared object.
func (c *caller) once(ctx context.Context) {
	c.round++
	name := fmt.Sprintf("%s-%d", c.as.name, c.round)
	created, _ := c.write(ctx, create, name, "", "")
	if created {
		value, version, found := c.read(ctx, name)
		if found && version != "" {
			c.write(ctx, update, name, value, version)
		}
	}
	c.list(ctx)
	if created {
		c.write(ctx, remove, name, "", "")
	}
	c.share(ctx, fmt.Sprint(sharedName, c.round%shared))
}

// share changes a shared object, or creates it.
func (c *caller) share(ctx context.Context, name string) {
	value, version, found := c.read(ctx, name)
	switch {
	case !found:
		c.write(ctx, create, name, "", "")
	case version != "":
		c.write(ctx, update, name, value, version)
	}
}

// read returns the value of an object and its resource version; an empty version if the request has failed.
func (c *caller) read(ctx context.Context, name string) (value, version string, found bool) {
	var got struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]string
		}
	}
	op := c.history.begin(get, name)
	err := c.request(ctx, http.MethodGet, c.t.kind.path(victimNamespace, name), nil, &got, http.StatusNotFound)
	switch {
	case err == nil:
		op.value, op.outcome = got.Metadata.Annotations[valueKey], done
	case codeOf(err) == http.StatusNotFound:
		op.outcome = missing
	default:
		return "", "", true // a failed read shows no value
	}
	c.history.end(op)
	return op.value, got.Metadata.ResourceVersion, op.outcome == done
}

// write creates, updates or deletes an object, and reports whether that was acknowledged.
func (c *caller) write(ctx context.Context, what action, name, before, version string) (bool, error) {
	op := c.history.begin(what, name)
	op.before = before
	path, method, body := c.t.kind.path(victimNamespace, name), http.MethodDelete, object(nil)
	if what != remove {
		op.value = fmt.Sprintf("%s-%d-%d", c.as.name, c.round, op.call)
		body = c.t.object(victimNamespace, name, op.value)
		method = http.MethodPut
		meta := body["metadata"].(object)
		meta["resourceVersion"] = version
		if what == update && strings.HasPrefix(name, sharedName) {
			meta["annotations"].(object)["attack.example.com/table"] = strings.Repeat(",", 30_000)
		}
	}
	if what == create {
		path, method = c.t.kind.path(victimNamespace, ""), http.MethodPost
		delete(body["metadata"].(object), "resourceVersion")
	}
	var sent any
	if body != nil {
		sent = body
	}
	err := c.request(ctx, method, path, sent, nil, http.StatusConflict, http.StatusNotFound)
	switch code := codeOf(err); {
	case err == nil:
		op.outcome = done
	case code == http.StatusConflict:
		op.outcome = conflict
	case code == http.StatusNotFound:
		op.outcome = missing
	case code >= 400 && code < 500:
		return false, err // nothing has been done
	default:
		op.outcome = unknown
	}
	c.history.end(op)
	return err == nil, err
}

func (c *caller) list(ctx context.Context) {
	var got struct{ Items []struct{} }
	err := c.request(ctx, http.MethodGet, c.t.kind.path(victimNamespace, "")+"?limit=100", nil, &got)
	if err == nil && len(got.Items) != 100 {
		c.record(sample{begun: time.Now(), failed: fmt.Sprintf("a list of 100 held %d", len(got.Items))})
	}
}

// request sends a request and records it. Responses with the given codes are successful, too.
func (c *caller) request(ctx context.Context, method, path string, body, into any, fine ...int) error {
	begun := time.Now()
	one, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	err := c.t.do(one, c.client, c.as, method, path, body, into)
	if ctx.Err() != nil {
		return err // the measurement is over
	}
	s := sample{begun: begun, took: time.Since(begun)}
	if err != nil {
		s.failed = cut(err.Error(), 200)
		for _, code := range fine {
			if codeOf(err) == code {
				s.failed = ""
			}
		}
	}
	c.record(s)
	return err
}

func (c *caller) record(s sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(c.samples, s)
	c.seen = s.begun
}

// after waits until a request that was begun after a moment has been answered, or the context ends.
func (c *caller) after(ctx context.Context, moment time.Time) {
	for {
		c.mu.Lock()
		seen := c.seen
		c.mu.Unlock()
		if seen.After(moment) || !pause(ctx, 10*time.Millisecond) {
			return
		}
	}
}

// latency describes the service of a caller in a period.
type latency struct {
	Requests int           `json:"requests"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Max      time.Duration `json:"max"`
	Failed   int           `json:"failed"`
	Reason   string        `json:"reason,omitempty"` // of the first failed request
}

// between returns the latency of the requests that were begun in a period.
func (c *caller) between(from, to time.Time) latency {
	c.mu.Lock()
	defer c.mu.Unlock()
	var took []time.Duration
	var l latency
	for _, s := range c.samples {
		if s.begun.Before(from) || s.begun.After(to) {
			continue
		}
		if took = append(took, s.took); s.failed != "" {
			if l.Failed++; l.Reason == "" {
				l.Reason = s.failed
			}
		}
	}
	l.Requests, l.P50, l.P99, l.Max = len(took), percentile(took, 0.5), percentile(took, 0.99), percentile(took, 1)
	return l
}
