package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ledger records the stored state that writers know of.
type ledger struct {
	mu sync.Mutex
	// stored are the resource versions that creates and updates returned.
	stored map[int64]bool
	// deleted are the deleted objects.
	deleted map[types.UID]bool
	// unknown counts the unanswered writes.
	unknown int
	// writers counts the writers that have begun. Each writes only its own objects.
	writers int
}

func newLedger() *ledger {
	return &ledger{stored: map[int64]bool{}, deleted: map[types.UID]bool{}}
}

func (l *ledger) store(obj metav1.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored[version(obj)] = true
}

func (l *ledger) delete(obj metav1.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted[obj.GetUID()] = true
}

func (l *ledger) newWriter() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writers++
	return l.writers
}

func (l *ledger) notAnswered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown++
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d creates and updates, %d deletes, %d writes not answered", len(l.stored), len(l.deleted), l.unknown)
}

func version(obj metav1.Object) int64 {
	n, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		// No comparison of versions can continue.
		panic(err)
	}
	return n
}

// observer records an informer's events.
type observer struct {
	name  string
	store cache.Store

	mu      sync.Mutex
	events  []event
	changed chan struct{}
}

type event struct {
	what    string
	initial bool
	key     string
	uid     types.UID
	version int64
}

// informer is the common interface of all libraries' informers.
type informer interface {
	AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// observe begins to record an informer's events.
func observe(t *testing.T, name string, i informer) *observer {
	t.Helper()
	o := &observer{name: name, changed: make(chan struct{})}
	if shared, ok := i.(cache.SharedInformer); ok {
		o.store = shared.GetStore()
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { o.add("add", obj, initial) },
		UpdateFunc: func(_, obj any) { o.add("update", obj, false) },
		DeleteFunc: func(obj any) { o.add("delete", obj, false) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *observer) add(what string, obj any, initial bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		what, obj = "delete missed", tombstone.Obj
	}
	m := obj.(metav1.Object)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event{what, initial, m.GetNamespace() + "/" + m.GetName(), m.GetUID(), version(m)})
	close(o.changed)
	o.changed = make(chan struct{})
}

// await returns when done returns true, which it calls after every event.
func (o *observer) await(ctx context.Context, done func(events []event) bool) error {
	for {
		o.mu.Lock()
		ok, changed := done(o.events), o.changed
		o.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitVersion returns when the informer has seen a version, that of the last write.
func (o *observer) awaitVersion(ctx context.Context, want int64) error {
	err := o.await(ctx, func(events []event) bool {
		return slices.ContainsFunc(events, func(e event) bool { return e.version >= want })
	})
	if err != nil {
		return fmt.Errorf("%s: wait for version %d: %w", o.name, want, err)
	}
	return nil
}

func (o *observer) all() []event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// check fails the test unless the informer saw every write once and in order. Unanswered writes are optional.
func (o *observer) check(t *testing.T, l *ledger) {
	t.Helper()
	if err := o.compare(l); err != nil {
		t.Errorf("%s: %v", o.name, err)
	}
}

func (o *observer) compare(l *ledger) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	stored, deleted := map[int64]bool{}, map[types.UID]bool{}
	alive := map[types.UID]bool{}
	last := int64(0)
	for _, e := range o.all() {
		if !e.initial && e.version <= last {
			fail("%s of %s at version %d after version %d", e.what, e.key, e.version, last)
		}
		last = max(last, e.version)
		switch e.what {
		case "add":
			if alive[e.uid] {
				fail("%s (%s) added twice", e.key, e.uid)
			}
			alive[e.uid] = true
			stored[e.version] = true
		case "update":
			if !alive[e.uid] {
				fail("%s (%s) updated before it was added", e.key, e.uid)
			}
			stored[e.version] = true
		default:
			if e.what != "delete" || !alive[e.uid] {
				fail("%s of %s (%s), which was there: %t", e.what, e.key, e.uid, alive[e.uid])
			}
			delete(alive, e.uid)
			deleted[e.uid] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	missed, unknown := difference(l.stored, stored), difference(stored, l.stored)
	missedDeletes, unknownDeletes := difference(l.deleted, deleted), difference(deleted, l.deleted)
	if len(missed)+len(missedDeletes) > 0 {
		fail("missed versions %v and deletes of %v", missed, missedDeletes)
	}
	if len(unknown)+len(unknownDeletes) > l.unknown {
		fail("saw versions %v and deletes of %v that no client wrote", unknown, unknownDeletes)
	}
	if len(errs) > 10 {
		errs = append(errs[:10], fmt.Errorf("and %d more", len(errs)-10))
	}
	return errors.Join(errs...)
}

func difference[K comparable](a, b map[K]bool) []K {
	return slices.Collect(maps.Keys(without(a, b)))
}

func without[K comparable](a, b map[K]bool) map[K]bool {
	left := maps.Clone(a)
	maps.DeleteFunc(left, func(k K, _ bool) bool { return b[k] })
	return left
}
