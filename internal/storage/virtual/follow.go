package virtual

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

const (
	// askTimeout bounds one background call of the source.
	askTimeout = time.Minute
	// The exponential backoff after errors starts at firstRetry and doubles up to lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
	// manyChanges is the number of possibly changed objects from which the source is listed instead of called for each
	// object.
	manyChanges = 500
)

// follow keeps the mirror current while there are watches.
func (m *Mirror) follow(ctx context.Context) {
	for {
		if m.isWatched() {
			m.followWatched(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.events:
		}
	}
}

// followWatched keeps the mirror current until there are no watches, or the context ends.
func (m *Mirror) followWatched(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	f := &follower{mirror: m, news: make(chan struct{}, 1), all: true}
	f.timer = time.NewTimer(0)
	defer f.timer.Stop()
	if m.source.Changes != nil {
		listening.Go(func() { f.listen(ctx) })
	}
	for m.isWatched() {
		select {
		case <-ctx.Done():
			return
		case <-m.events:
			continue
		case <-f.timer.C:
			f.all = f.all || m.source.Poll > 0
		case <-f.news:
		}
		f.ask(ctx)
	}
}

// follower collects possible changes, and calls the source for them.
type follower struct {
	mirror *Mirror
	news   chan struct{}
	timer  *time.Timer
	failed int  // failures in a row
	all    bool // any object may have changed

	mu   sync.Mutex
	keys map[string]struct{} // objects that may have changed since the last call of the source
	many bool                // list the source instead
}

// changed is the callback of a change feed.
func (f *follower) changed(namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case name == "" || len(f.keys) >= manyChanges:
		f.keys, f.many = nil, true
	case !f.many:
		if f.keys == nil {
			f.keys = map[string]struct{}{}
		}
		f.keys[f.mirror.keyOf(namespace, name)] = struct{}{}
	}
	await.Notify(f.news)
}

// take returns the collected changes and resets them.
func (f *follower) take() (keys map[string]struct{}, many bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys, many = f.keys, f.many
	f.keys, f.many = nil, false
	return keys, many
}

// ask calls the source for the collected changes. After an error, everything is listed again later.
func (f *follower) ask(ctx context.Context) {
	m := f.mirror
	keys, many := f.take()
	f.all = f.all || many
	limited, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var err error
	listed := f.all
	if listed {
		err = m.refreshAll(limited)
	} else {
		for key := range keys {
			if err = m.refresh(limited, key); err != nil {
				break
			}
		}
	}
	if ctx.Err() != nil {
		return
	}
	f.all = err != nil
	if err != nil {
		if f.failed == 0 {
			klog.FromContext(ctx).Error(err, "The source does not answer; watches get no events "+
				"until it does", "resource", m.kind.GroupResource())
		}
		f.failed++
		f.timer.Reset(f.retry())
		return
	}
	if f.failed > 0 {
		klog.FromContext(ctx).Info("The source answers again", "resource", m.kind.GroupResource())
		f.failed = 0
	}
	if listed && m.source.Poll > 0 {
		f.timer.Reset(m.source.Poll)
	}
}

// retry returns the delay after an error, which is at most the time until the next poll.
func (f *follower) retry() time.Duration {
	wait := backoff(f.failed)
	if poll := f.mirror.source.Poll; poll > 0 {
		wait = min(wait, max(poll, firstRetry))
	}
	return wait
}

// backoff returns the delay after a number of failures in a row.
func backoff(failures int) time.Duration {
	return min(firstRetry<<min(failures-1, 20), lastRetry)
}

// listen runs the source's change feed until the context ends. If the feed returns, it is called again after a backoff,
// and starts by reporting that everything may have changed: see annex.Source.
func (f *follower) listen(ctx context.Context) {
	m := f.mirror
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := m.call(ctx, "Changes", func() error { return m.source.Changes(ctx, f.changed) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			failures = 0
		}
		if failures++; failures == 1 {
			klog.FromContext(ctx).Error(err, "The change feed of the source ended, restarting it", "resource", m.kind.GroupResource())
		}
		await.Sleep(ctx, clock.RealClock{}, backoff(failures))
	}
}
