package virtual

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/base/ordered"
)

// Get implements storage.Interface. Without a resource version it calls the source.
func (m *Mirror) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	m.fillOnce(ctx)
	if opts.ResourceVersion == "" || !m.isFilled() {
		if err := m.refresh(ctx, key); err != nil {
			return err
		}
	}
	return m.Interface.Get(ctx, key, opts, out)
}

// GetList implements storage.Interface. The first page of a list without a resource version calls the source; the
// following pages are read at the same revision.
func (m *Mirror) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	var err error
	switch latest := opts.ResourceVersion == "" && opts.Predicate.Continue == ""; {
	case latest && opts.Recursive:
		err = m.refreshAll(ctx)
	case latest:
		err = m.refresh(ctx, key)
	default:
		err = m.fill(ctx)
	}
	if err != nil {
		return err
	}
	return m.Interface.GetList(ctx, key, opts, listObj)
}

// Query implements ordered.Querier. It calls the source, as a list does.
func (m *Mirror) Query(ctx context.Context, key string, q *ordered.Query) (*ordered.Page, error) {
	if err := m.refreshAll(ctx); err != nil {
		return nil, err
	}
	querier, ok := m.Interface.(ordered.Querier)
	if !ok {
		return nil, fmt.Errorf("mirror of %s: %T does not support queries", m.resource.Resource, m.Interface)
	}
	return querier.Query(ctx, key, q)
}

// Watch implements storage.Interface. A watch that starts at the latest state calls the source first.
func (m *Mirror) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	// Start following now, so that no change is lost between the list and the first poll.
	stop := m.watched(ctx)
	var err error
	if opts.ResourceVersion == "" {
		err = m.refreshAll(ctx)
	} else {
		err = m.fill(ctx)
	}
	if err != nil && ctx.Err() == nil {
		stop()
		return nil, err
	}
	w, err := m.Interface.Watch(ctx, key, opts)
	if err != nil {
		stop()
		return nil, err
	}
	return &pollingWatch{w, stop}, nil
}

// pollingWatch is a watch that keeps the source polled until it stops.
type pollingWatch struct {
	watch.Interface
	stop func()
}

func (w *pollingWatch) Stop() {
	w.Interface.Stop()
	w.stop()
}

// watched keeps the source polled until the context ends or stop is called. stop is idempotent.
func (m *Mirror) watched(ctx context.Context) (stop func()) {
	m.watchesChange(+1)
	end := sync.OnceFunc(func() { m.watchesChange(-1) })
	forget := context.AfterFunc(ctx, end)
	return func() {
		forget()
		end()
	}
}

func (m *Mirror) watchesChange(by int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watches += by
	await.Notify(m.events)
}

func (m *Mirror) isWatched() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watches > 0
}
