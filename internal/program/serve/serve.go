// Package serve opens, runs and drains the server of a plan: it opens the storages and certificates, listens,
// starts the background work, and shuts everything down in reverse order.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/audit"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/storage/virtual"
	"github.com/annexapi/annex/store"
)

// Server is a server that has been built and listens, but does not answer before Run.
type Server struct {
	definition *define.Server
	plan       *plan.Plan

	storages        Storages
	encryption      *encryption.Encryption
	stores          *registry.Stores
	memory          *budget.Budget // nil if requests are unbounded
	tools           *maintenance.Local
	storedEncodings *storedEncodings
	checked         bool // whether the stored objects have been found readable
	certs           *certs.Certs
	machinery       *convert.Machinery
	loopback        *loopback.Loopback
	informers       *informer.Set
	mode            mode
	login           *login.Login     // nil if users cannot sign in
	audit           *audit.Audit     // nil without audit
	accessLog       *audit.AccessLog // nil without an access log
	kinds           []*registry.Kind
	env             any
	operations      define.Operations // nil if no kind has operations
	upstream        *upstream.Server
	serving         *upstream.Serving
	tracing         *upstream.Tracing // nil without tracing

	secure   net.Listener
	insecure net.Listener
	unix     net.Listener

	// initialized is closed when the mode has initialized the storages and the watch caches are filled, or
	// cacheTimeout has passed.
	initialized chan struct{}
	stopping    chan struct{}
	// draining is closed before it: /readyz fails from then on.
	draining chan struct{}
	closers  []func() error
	// ended is set by the first call of Run, or of Close without Run.
	ended atomic.Bool
}

// New builds the server of a plan. On an error it leaves nothing open. No request is answered before Run.
func New(ctx context.Context, p *plan.Plan, newEnv definition.EnvFunc) (*Server, error) {
	s := &Server{
		definition:      p.Definition,
		plan:            p,
		mode:            newMode(p),
		memory:          newBudget(p.Options.MemoryBudget),
		storedEncodings: newStoredEncodings(),
		initialized:     make(chan struct{}),
		stopping:        make(chan struct{}),
		draining:        make(chan struct{}),
	}
	if err := s.build(ctx, newEnv); err != nil {
		if closing := s.close(); closing != nil {
			err = fmt.Errorf("%w (and closing: %w)", err, closing)
		}
		return nil, err
	}
	return s, nil
}

func (s *Server) build(ctx context.Context, newEnv definition.EnvFunc) error {
	if err := checkDataDir(s.plan); err != nil {
		return err
	}
	var err error
	s.encryption, err = encryption.Open(ctx, encryption.Options{
		File:   s.plan.Options.EncryptionConfigFile,
		Reload: s.plan.Options.EncryptionConfigReload,
		Server: s.definition.Name,
	})
	if err != nil {
		return err
	}
	s.onClose(func() error { s.encryption.Close(); return nil })
	if s.audit, err = audit.Open(ctx, s.plan.Options.Audit); err != nil {
		return err
	}
	s.onClose(s.audit.Close)
	if s.accessLog, err = audit.OpenAccessLog(s.plan.Options.AccessLog); err != nil {
		return err
	}
	s.onClose(s.accessLog.Close)
	if s.tracing, err = upstream.OpenTracing(s.plan.Options.TracingConfigFile, s.definition, s.plan.Options.ShutdownTimeout); err != nil {
		return err
	}
	s.onClose(s.tracing.Close)
	if s.serving, err = upstream.OpenServing(s.plan.Options.Serving); err != nil {
		return err
	}
	s.onClose(func() error { s.serving.Close(); return nil })
	if err := s.openFiles(ctx); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	s.loopback = loopback.New()
	s.onClose(s.loopback.Close)
	if err := s.mode.open(ctx, s); err != nil {
		return err
	}
	machinery, err := convert.New(s.definition, s.mode.types()...)
	if err != nil {
		return err
	}
	machinery.Items().Bound(ListItems())
	s.machinery = machinery
	s.logHidden(ctx)
	s.informers = informer.NewSet(s.loopback.Config(), machinery.Codecs)

	stores := newStores(s.plan, s.storages.OfAny, machinery, s.encryption)
	s.stores = stores
	if s.tools, err = s.maintenance(stores); err != nil {
		return err
	}
	if err := s.checkReadable(ctx); err != nil {
		return err
	}
	if err := s.mode.store(s); err != nil {
		return err
	}
	if s.plan.Options.UnrestrictedUpdate {
		klog.FromContext(ctx).Error(nil, "Options.UnrestrictedUpdate: updates without a resource version overwrite what others have written")
	}
	env := newEnv(s.definition, s.loopback.Config(), s.informers, s.rootCA)
	s.env = env
	hooks, err := admit.NewHooks(s.definition, env)
	if err != nil {
		return err
	}
	stores.Hooks = hooks
	if err := s.openOperations(env); err != nil {
		return err
	}
	for _, k := range s.definition.Kinds() {
		if k.AliasOf != nil {
			continue
		}
		storage, err := s.storageOf(ctx, k, stores)
		if err != nil {
			return err
		}
		options := func(k *define.Kind) registry.Options {
			scheme := machinery.Of(k.Group).Scheme
			return registry.Options{
				Typer:               scheme,
				Convertor:           scheme,
				Validator:           scheme,
				RESTOptions:         s.mode.guard(storage),
				Opened:              stores.Opened,
				UnconditionalUpdate: s.plan.Options.UnrestrictedUpdate,
				Env:                 env,
				Hooks:               hooks,
				Operations:          s.operations,
				GarbageCollected:    s.mode.collectsGarbage(),
			}
		}
		kind, err := registry.NewKind(k, options(k))
		if err != nil {
			return err
		}
		s.kinds = append(s.kinds, kind)
		s.destroyOnClose(kind.Storage())
		for _, also := range k.Aliases {
			s.kinds = append(s.kinds, kind.Share(also, options(also)))
		}
	}
	config := upstream.Config{
		Definition:     s.definition,
		Machinery:      machinery,
		Stores:         stores,
		Kinds:          s.kinds,
		Loopback:       s.loopback.Config(),
		Address:        s.address(),
		AuditSink:      s.audit.Sink(),
		AuditPolicy:    s.audit.Policy(),
		AccessLog:      s.accessLog.Handler(),
		Ready:          s.readyChecks(),
		Metrics:        s.metrics(),
		LongRunning:    maintenance.Handlers(s.tools),
		Memory:         s.memory,
		Tracing:        s.tracing,
		Serving:        s.plan.Options.Serving,
		RequestTimeout: s.plan.Options.RequestTimeout,
		Stopping:       s.stopping,
		CheckPeriod:    standing.PeriodFrom(ctx),
		NoFastPath:     s.plan.Options.DisableFastPath,
	}
	if config.Handlers, err = s.handlers(); err != nil {
		return err
	}
	own, err := s.admissionPlugins(hooks)
	if err != nil {
		return err
	}
	if err := s.mode.configure(&config, own); err != nil {
		return err
	}
	if err := s.queries(&config); err != nil {
		return err
	}
	if s.upstream, err = upstream.New(config); err != nil {
		return err
	}
	s.onClose(func() error { s.upstream.Destroy(); return nil })
	if path := s.Kubeconfig(); path != "" {
		return s.certs.WriteKubeconfig(path, s.definition.Name, s.URL())
	}
	return nil
}

// storageOf returns the storage of a kind: the stores, or the mirror of a virtual kind's source.
func (s *Server) storageOf(ctx context.Context, k *define.Kind, stores generic.RESTOptionsGetter) (generic.RESTOptionsGetter, error) {
	if k.Source == nil {
		return stores, nil
	}
	mirror, err := virtual.Open(ctx, k, coreOptions(&s.plan.Options))
	if err != nil {
		return nil, err
	}
	s.onClose(mirror.Close)
	return mirror.Over(stores), nil
}

// Served returns the verbs of a kind's main endpoint, and its subresources.
func (s *Server) Served(resource schema.GroupResource) (verbs, subresources []string) {
	for _, k := range s.kinds {
		if k.Definition.GroupResource() == resource {
			return upstream.Served(k)
		}
	}
	return nil, nil
}

// openFiles opens the server's files. The record of the data directory is durable before the first write of a
// client.
func (s *Server) openFiles(ctx context.Context) error {
	var err error
	open := func() error {
		lock, err := openDataDir(ctx, s.plan)
		if err != nil {
			return err
		}
		s.onClose(lock.Close)
		return nil
	}
	// Create no directory if a remote storage turns out to be unreachable.
	first := slices.ContainsFunc(s.plan.Storages, func(p *plan.Storage) bool { return !p.Traits().Remote && !p.Traits().Ephemeral })
	if first {
		if err := open(); err != nil {
			return err
		}
	}
	if s.storages, err = openStorages(ctx, s.plan); err != nil {
		return err
	}
	s.onClose(s.storages.Close)
	if !first {
		if err := open(); err != nil {
			return err
		}
	}
	if err := recordDataDir(s.plan); err != nil {
		return err
	}
	options := certs.Options{
		Dir:      s.plan.CertDir(),
		Hosts:    s.hosts(),
		CertFile: s.plan.Options.TLSCertFile,
		KeyFile:  s.plan.Options.TLSPrivateKeyFile,
	}
	s.mode.certificates(&options)
	if s.certs, err = certs.Open(ctx, options); err != nil {
		return err
	}
	s.onClose(func() error { s.certs.Close(); return nil })
	return nil
}

// rootCA returns the authorities that verify the server, for clients that do not connect through a cluster.
func (s *Server) rootCA() []byte {
	if !s.mode.administers() {
		return nil
	}
	return s.certs.RootCA()
}

func (s *Server) onClose(f func() error) { s.closers = append(s.closers, f) }

// destroyOnClose stops the background work of storages even if they are never installed in the API server that
// destroys them. Destroy is idempotent.
func (s *Server) destroyOnClose(storages map[string]registryrest.Storage) {
	for _, storage := range storages {
		s.onClose(func() error { storage.Destroy(); return nil })
	}
}

// Close releases the resources of a server that is not run. After Run, or when called again, it does nothing.
func (s *Server) Close() error {
	if s.ended.Swap(true) {
		return nil
	}
	return s.close()
}

// close releases all resources, the last opened first.
func (s *Server) close() error {
	var errs []error
	for _, f := range slices.Backward(s.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

func (s *Server) readyChecks() []healthz.HealthChecker {
	checks := append(s.encryption.HealthChecks(), s.editsChecks()...)
	for _, storage := range s.storages {
		name := "storage"
		if len(s.storages) > 1 {
			name += "-" + storage.Name()
		}
		checks = append(checks, healthz.NamedCheck(name, func(*http.Request) error { return storage.health() }))
	}
	return append(slices.Concat(checks, s.mode.checks()),
		healthz.NamedCheck("stopping", func(*http.Request) error {
			select {
			case <-s.draining:
				return errors.New("the server is shutting down")
			default:
				return nil
			}
		}),
	)
}

// metrics returns the metrics of the server and of its storages, without upstream's.
func (s *Server) metrics() []prometheus.Collector {
	all := append(budgetMetrics(s.memory), encryptionMetrics{s.encryption, s.storages}, encodingMetrics{s.storedEncodings})
	all = slices.Concat(all, listItemsMetrics(s.machinery.Items()), s.mode.metrics(), s.audit.Metrics(), s.accessLog.Metrics())
	if s.operations != nil {
		all = append(all, s.operations.Metrics()...)
	}
	for _, storage := range s.storages {
		if core, ok := storage.Backend.(*mvcc.Core); ok {
			all = append(all, newMetrics(storage.Name(), core))
		}
		if metered, ok := storage.Backend.(store.Metered); ok {
			all = append(all, metered.Collectors(prometheus.Labels{"storage": storage.Name()})...)
		}
		if storage.edited != nil {
			all = append(all, editsMetrics(storage.Name(), storage.edited)...)
		}
	}
	return all
}

// Handler is the server's HTTP interface, with authentication and authorization. It answers usefully only while Run
// runs.
func (s *Server) Handler() http.Handler { return s.upstream.Embedded() }

// Cluster describes in one line the cluster of the server and the optional permissions that are left out; empty for
// a standalone server.
func (s *Server) Cluster() string { return s.mode.cluster() }

// ClientConfig returns the administrator's client configuration over HTTPS. If the server does not listen or has no
// administrator, it returns a configuration over the loopback.
func (s *Server) ClientConfig() (*rest.Config, error) {
	if s.secure == nil || !s.mode.administers() {
		return s.loopback.Config(), nil
	}
	return s.certs.ClientConfig(s.URL())
}

// Kubeconfig returns the path of the administrator's kubeconfig; empty if the server writes none.
func (s *Server) Kubeconfig() string {
	if s.plan.Options.DataDir == "" || s.URL() == "" || !s.mode.administers() || s.plan.Options.Kubeconfig.None {
		return ""
	}
	path, err := filepath.Abs(s.plan.Path("kubeconfig"))
	if err != nil {
		return s.plan.Path("kubeconfig")
	}
	return path
}

// Run serves until the context ends. Then it waits for requests in flight, ends watches and closes the server;
// after the shutdown timeout it cancels the remaining work. It calls ready once /readyz answers 200. Run works only
// once, and not after Close.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if s.ended.Swap(true) {
		return errors.New("the server has been run or closed already; make a new one")
	}
	background, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	controllers, stopControllers := context.WithCancel(background)
	defer stopControllers()
	informers, stopInformers := context.WithCancel(background)
	defer stopInformers()
	var running sync.WaitGroup
	s.startBackground(background, &running)
	s.startClients(controllers, informers, &running, cancel)
	for _, storage := range s.storages.edited() {
		running.Go(func() {
			// Its files are written until the last request has ended.
			if err := storage.edited.Run(background, s.decideEdits()); err != nil {
				cancel(err)
			}
		})
	}
	s.loopback.Serve(s.upstream.Handler)
	running.Go(func() { s.upstream.Start(background) })
	stop, err := s.serve()
	if err == nil {
		err = s.becomeReady(ctx, background)
	}
	waitForControllers, waitForOperations := func() {}, func() {}
	if err == nil {
		waitForControllers, waitForOperations = s.startControllers(controllers), s.startOperations(controllers)
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
	stopControllers()
	s.leave(context.WithoutCancel(ctx))
	waitForControllers()
	waitForOperations()
	stopInformers()
	s.shutDown(context.WithoutCancel(ctx), stop)
	cancel(nil)
	running.Wait()
	return errors.Join(err, s.close())
}

// leave begins to drain: /readyz fails, so that load balancers send requests elsewhere, and the server still
// answers requests for ShutdownDelay.
func (s *Server) leave(ctx context.Context) {
	delay := time.NewTimer(s.plan.Options.ShutdownDelay)
	defer delay.Stop()
	close(s.draining)
	s.mode.leave(ctx)
	if s.plan.Options.ShutdownDelay > 0 {
		<-delay.C
	}
}

// shutDown rejects new requests and waits for requests in flight, for the shutdown timeout at most.
func (s *Server) shutDown(ctx context.Context, stop func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, s.plan.Options.ShutdownTimeout)
	defer cancel()
	close(s.stopping)
	if err := s.upstream.Drain(ctx); err != nil {
		klog.FromContext(ctx).Error(nil, "Requests in progress were cut off by the shutdown", "timeout", s.plan.Options.ShutdownTimeout)
	}
	idle, cancel := context.WithTimeout(ctx, idleTimeout)
	defer cancel()
	stop(idle)
}

// idleTimeout bounds the time for connections to close after their last response: for the last bytes, and for
// HTTP/2's GOAWAY, which takes a second. Connections with an incomplete request or handshake would delay a shutdown
// much longer.
const idleTimeout = 2 * time.Second

// startBackground starts the background work that requests in flight need. It runs until the last of them has been
// answered.
func (s *Server) startBackground(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { s.certs.Run(ctx) })
	running.Go(func() { s.encryption.Run(ctx) })
	running.Go(func() { s.countForms(ctx) })
	running.Go(func() { s.mode.background(ctx) })
	running.Go(func() { s.audit.Run(ctx, s.plan.Options.ShutdownTimeout) })
	running.Go(func() { s.accessLog.Run(ctx) })
	running.Go(func() { s.upstream.CheckStreams(ctx) })
}

// startClients starts the server's own controllers, and the informers on which hooks rely until requests are
// rejected. Both are clients of the server itself. A client that cannot continue calls fail.
func (s *Server) startClients(controllers, informers context.Context, running *sync.WaitGroup, fail context.CancelCauseFunc) {
	must := func(ctx context.Context, run func(context.Context) error) {
		running.Go(func() {
			if err := run(ctx); err != nil {
				fail(err)
			}
		})
	}
	for _, k := range s.kinds {
		if k.NeedsGraceTimer() {
			running.Go(func() { k.RunGraceTimer(controllers, clock.RealClock{}) })
		}
	}
	must(informers, s.informers.Run)
	for _, run := range s.mode.controllers(s.readyBut) {
		must(controllers, run)
	}
}

// becomeReady returns nil when the server is initialized and /readyz answers 200. It fails after readyTimeout, not
// counting the time while a storage is unavailable. ctx ends when the server is stopped, background when a part of
// it has failed.
func (s *Server) becomeReady(ctx, background context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var limit sync.WaitGroup
	defer limit.Wait()
	defer cancel(nil)
	defer context.AfterFunc(background, func() { cancel(context.Cause(background)) })()
	err := s.storages.awaitConnected(ctx)
	if err == nil {
		err = s.checkReadable(ctx)
	}
	if err == nil {
		err = s.awaitEdits(ctx)
	}
	if err == nil {
		limit.Go(func() { s.limitStart(ctx, cancel) })
		err = s.mode.initialize(ctx)
	}
	if err == nil {
		s.awaitCaches(ctx)
		close(s.initialized)
		err = s.untilReady(ctx)
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
func (s *Server) awaitCaches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, k := range s.kinds {
		storage, ok := k.Storage()[k.Definition.Resource].(registryrest.StorageWithReadiness)
		for ok {
			err := storage.ReadinessCheck()
			if err == nil || s.storages.health() != nil {
				break
			}
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				klog.FromContext(ctx).Error(err, "Serving although a kind cannot be listed yet", "resource", k.Definition.GroupResource())
			}
			break
		}
	}
}

// limitStart fails a start that takes longer than readyTimeout although all storages are available and no condition
// outside of the server is missing.
func (s *Server) limitStart(ctx context.Context, fail context.CancelCauseFunc) {
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if s.storages.health() == nil && s.mode.blocked() == nil {
			fail(fmt.Errorf("not ready after %s; ask /readyz?verbose for the reason", readyTimeout))
			return
		}
		timer.Reset(readyTimeout)
	}
}

// serve serves on all listeners. The returned function stops that: it waits until the connections are idle or the
// context ends.
func (s *Server) serve() (stop func(context.Context), err error) {
	var listening []*upstream.Listening
	stop = func(ctx context.Context) {
		var all sync.WaitGroup
		for _, l := range listening {
			all.Go(func() { l.Shutdown(ctx) })
		}
		all.Wait()
	}
	grace := s.plan.Options.ShutdownTimeout
	if s.secure != nil {
		l, err := s.serving.TLS(s.secure, s.upstream.Handler, s.mode.serving(), s.mode.clientCA(), grace)
		if err != nil {
			return stop, err
		}
		listening = append(listening, l)
	}
	for _, plain := range []net.Listener{s.insecure, s.unix} {
		if plain == nil {
			continue
		}
		l, err := upstream.ServePlain(plain, s.upstream.Handler, grace)
		if err != nil {
			return stop, err
		}
		listening = append(listening, l)
	}
	return stop, nil
}

// readyTimeout bounds the time in which a working server must become ready.
const readyTimeout = 2 * time.Minute

// untilReady returns nil when /readyz answers 200. It polls, because the conditions come from many hooks.
func (s *Server) untilReady(ctx context.Context) error {
	const often, seldom = time.Millisecond, 100 * time.Millisecond
	pause := time.NewTimer(often)
	defer pause.Stop()
	for wait := often; !s.isReady(ctx); wait = min(wait*5/4+often, seldom) {
		select {
		case <-pause.C:
			pause.Reset(wait)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *Server) isReady(ctx context.Context) bool { return s.isOK(ctx, "/readyz") }

// IsAlive reports whether /livez answers 200. If it does not, only a restart helps.
func (s *Server) IsAlive(ctx context.Context) bool { return s.isOK(ctx, "/livez") }

// isOK reports whether a path answers 200.
func (s *Server) isOK(ctx context.Context, path string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false
	}
	// Anonymous requests may be disabled.
	request.Header.Set("Authorization", "Bearer "+s.loopback.Token())
	response := &statusRecorder{header: http.Header{}}
	s.upstream.Handler.ServeHTTP(response, request)
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
