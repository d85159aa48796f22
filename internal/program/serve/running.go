package serve

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/server/upstream"
)

// running runs a server once: the background work, the controllers, and the shutdown.
type running struct{ readiness }

// run serves until the context ends, and drains the server.
func (r *running) run(ctx context.Context, ready func()) error {
	background, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	controllers, stopControllers := context.WithCancel(background)
	defer stopControllers()
	informers, stopInformers := context.WithCancel(background)
	defer stopInformers()
	var work sync.WaitGroup
	r.startBackground(background, &work)
	r.startClients(controllers, informers, &work, fail)
	r.startEdits(background, &work, fail)
	r.opened.loopback.Serve(r.machinery.api.Handler)
	work.Go(func() { r.machinery.api.Start(background) })
	stop, err := r.serve()
	if err == nil {
		err = r.becomeReady(ctx, background)
	}
	var waits []func()
	if err == nil {
		waits = r.startControllers(controllers)
		ready()
		select {
		case <-ctx.Done():
		case <-background.Done():
			err = context.Cause(background)
		}
	}
	if ctx.Err() != nil {
		// Stopping is no error, not even before the server was ready.
		err = nil
	}
	drain{
		signals: r.signals, delay: r.opened.plan.Options.ShutdownDelay, timeout: r.opened.plan.Options.ShutdownTimeout,
		stopControllers: stopControllers, waitForControllers: waits, leave: r.opened.mode.leave,
		stopInformers: stopInformers, awaitRequests: r.machinery.api.Drain, stopListening: stop,
	}.run(context.WithoutCancel(ctx))
	fail(nil)
	work.Wait()
	return err
}

// startBackground starts the background work that requests in flight need. It runs until the last of them has been
// answered.
func (r *running) startBackground(ctx context.Context, work *sync.WaitGroup) {
	o, m := r.opened, r.machinery
	work.Go(func() { o.certs.Run(ctx) })
	work.Go(func() { o.encryption.Run(ctx) })
	work.Go(func() { m.contents.countForms(ctx) })
	work.Go(func() { o.mode.background(ctx) })
	work.Go(func() { o.recorders.audit.Run(ctx, o.plan.Options.ShutdownTimeout) })
	work.Go(func() { o.recorders.accessLog.Run(ctx) })
	work.Go(func() { m.api.CheckStreams(ctx) })
}

// startClients starts the server's own controllers, and the informers on which hooks and admission rely until requests
// are rejected. Both are clients of the server itself. A client that cannot continue calls fail.
func (r *running) startClients(controllers, informers context.Context, work *sync.WaitGroup, fail context.CancelCauseFunc) {
	must := func(ctx context.Context, run func(context.Context) error) {
		work.Go(func() {
			if err := run(ctx); err != nil {
				fail(err)
			}
		})
	}
	var c clock.WithTicker = clock.RealClock{}
	if own := r.opened.plan.Options.Clock; own != nil {
		c = own
	}
	for _, k := range r.machinery.catalog.kinds {
		if k.NeedsGraceTimer() {
			work.Go(func() { k.RunGraceTimer(controllers, c) })
		}
	}
	must(informers, r.machinery.model.informers.Run)
	for _, run := range r.machinery.api.mode.followers() {
		must(informers, run)
	}
	for _, run := range r.machinery.api.mode.controllers(r.readyBut) {
		must(controllers, run)
	}
}

// startEdits starts the storages with editable files. Their files are written until the last request has ended.
func (r *running) startEdits(ctx context.Context, work *sync.WaitGroup, fail context.CancelCauseFunc) {
	m := r.machinery
	for _, storage := range r.opened.storages.edited() {
		work.Go(func() {
			if err := storage.edited.Run(ctx, decideEdits(m.api.mode.editors(m.catalog.kinds, m.model.schemes))); err != nil {
				fail(err)
			}
		})
	}
}

// startControllers starts the user's controllers that the options select, and the execution of operations on each
// replica. The functions block until these have ended, for ShutdownTimeout at most each.
func (r *running) startControllers(ctx context.Context) (waits []func()) {
	p, c := r.opened.plan, r.machinery.catalog
	ran := func(c define.Controller) bool { return c.Run == nil } // by the server itself
	if selected := slices.DeleteFunc(slices.Clone(p.Controllers), ran); len(selected) > 0 {
		waits = append(waits, start(ctx, p.Options.ShutdownTimeout, "Controllers have not returned at the end of their context", func() {
			r.opened.mode.lead(ctx, func(ctx context.Context) { controllers.Run(ctx, selected, c.env, clock.RealClock{}) })
		}))
	}
	if c.operations != nil {
		waits = append(waits, start(ctx, p.Options.ShutdownTimeout, "Operations have not ended at the end of their context", func() {
			c.operations.Run(ctx, c.recall)
		}))
	}
	return waits
}

// start runs work. The returned function blocks until work has returned, or logs the complaint after the timeout.
func start(ctx context.Context, timeout time.Duration, complaint string, work func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	return func() {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			klog.FromContext(ctx).Error(nil, complaint, "timeout", timeout)
		}
	}
}

// serve serves on all listeners. The returned function stops that: it waits until the connections are idle or the
// context ends.
func (r *running) serve() (stop func(context.Context), err error) {
	var listening []*upstream.Listening
	stop = func(ctx context.Context) {
		var all sync.WaitGroup
		for _, l := range listening {
			all.Go(func() { l.Shutdown(ctx) })
		}
		all.Wait()
	}
	o, handler := r.opened, r.machinery.api.Handler
	grace := o.plan.Options.ShutdownTimeout
	if o.listeners.secure != nil {
		l, err := o.serving.TLS(o.listeners.secure, handler, o.mode.serving(), o.mode.clientCA(), grace)
		if err != nil {
			return stop, err
		}
		listening = append(listening, l)
	}
	for _, plain := range []net.Listener{o.listeners.insecure, o.listeners.unix} {
		if plain == nil {
			continue
		}
		l, err := upstream.ServePlain(plain, handler, grace)
		if err != nil {
			return stop, err
		}
		listening = append(listening, l)
	}
	return stop, nil
}
