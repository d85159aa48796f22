package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
)

// readiness knows whether a server is ready.
type readiness struct {
	opened    *opened
	machinery *machinery
	signals   signals
}

// becomeReady returns nil when the server is initialized and /readyz answers 200. It fails after readyTimeout, not
// counting the time while a storage is unavailable. ctx ends when the server is stopped, background when a part of
// it has failed.
func (r readiness) becomeReady(ctx, background context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var limit sync.WaitGroup
	defer limit.Wait()
	defer cancel(nil)
	defer context.AfterFunc(background, func() { cancel(context.Cause(background)) })()
	err := r.opened.storages.awaitConnected(ctx)
	if err == nil && !r.machinery.checked {
		_, err = r.machinery.contents.check(ctx)
		r.machinery.contents.logUnserved(ctx)
	}
	if err == nil {
		err = r.opened.storages.awaitEdits(ctx)
	}
	if err == nil {
		limit.Go(func() { r.limitStart(ctx, cancel) })
		err = r.machinery.api.mode.initialize(ctx)
	}
	if err == nil {
		r.awaitCaches(ctx)
		close(r.signals.initialized)
		err = r.untilReady(ctx)
	}
	if background.Err() != nil {
		return context.Cause(background)
	}
	return err
}

// cacheTimeout bounds the time that a start waits for watch caches. A cache that cannot be filled, perhaps because
// an object cannot be decoded, must not block the other kinds.
const cacheTimeout = 10 * time.Second

// awaitCaches waits until the kinds can be listed and watched: a watch cache first reads all objects, and rejects
// requests with 429 until then.
func (r readiness) awaitCaches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, k := range r.machinery.catalog.kinds {
		storage, ok := k.Storage()[k.Definition.Resource].(registryrest.StorageWithReadiness)
		for ok {
			err := storage.ReadinessCheck()
			if err == nil || r.opened.storages.health() != nil {
				break
			}
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				klog.FromContext(ctx).Error(err, "Serving before the first list of a kind", "resource", k.Definition.GroupResource())
			}
			break
		}
	}
}

// limitStart fails a start that takes longer than readyTimeout although all storages are available and no condition
// outside of the server is missing.
func (r readiness) limitStart(ctx context.Context, fail context.CancelCauseFunc) {
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if r.opened.storages.health() == nil && r.opened.mode.blocked() == nil {
			fail(fmt.Errorf("not ready after %s; see /readyz?verbose for the reason", readyTimeout))
			return
		}
		timer.Reset(readyTimeout)
	}
}

// readyTimeout bounds the time in which a working server must become ready.
const readyTimeout = 2 * time.Minute

// untilReady returns nil when /readyz answers 200. It polls, because the conditions come from many hooks.
func (r readiness) untilReady(ctx context.Context) error {
	const often, seldom = time.Millisecond, 100 * time.Millisecond
	pause := time.NewTimer(often)
	defer pause.Stop()
	for wait := often; !r.isReady(ctx); wait = min(wait*5/4+often, seldom) {
		select {
		case <-pause.C:
			pause.Reset(wait)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r readiness) isReady(ctx context.Context) bool { return r.isOK(ctx, "/readyz") }

// isOK reports whether a path answers 200.
func (r readiness) isOK(ctx context.Context, path string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false
	}
	// Anonymous requests may be disabled.
	request.Header.Set("Authorization", "Bearer "+r.opened.loopback.Token())
	response := &statusRecorder{header: http.Header{}}
	r.machinery.api.Handler.ServeHTTP(response, request)
	return response.status == http.StatusOK
}

// statusRecorder records only a response's status.
type statusRecorder struct {
	header http.Header
	status int
}

func (r *statusRecorder) Header() http.Header { return r.header }

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return len(b), nil
}

func (r *statusRecorder) WriteHeader(status int) { r.status = status }

// readyBut returns the error of the first failing check of /readyz, ignoring the check named aside.
func (r readiness) readyBut(aside string) error {
	select {
	case <-r.signals.initialized:
	default:
		return errors.New("the server has not begun to answer")
	}
	for _, check := range r.machinery.api.checks {
		if check.Name() == aside {
			continue
		}
		if err := check.Check(nil); err != nil {
			return fmt.Errorf("%s: %w", check.Name(), err)
		}
	}
	return nil
}
