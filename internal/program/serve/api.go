package serve

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
)

// api is the handler of all requests, and the part of the mode that configured it.
type api struct {
	*upstream.Server
	mode modeService
	// checks are the checks of /readyz, without upstream's.
	checks []healthz.HealthChecker
}

// apiBuilder has the parts of which the API is made.
type apiBuilder struct {
	opened   *opened
	signals  signals
	model    model
	contents *contents
	catalog  *catalog
}

func (b apiBuilder) build(ctx context.Context, storage modeStorage, closing *closers) (*api, error) {
	memory := newBudget(b.opened.plan.Options.MemoryBudget)
	config := b.config(ctx, memory)
	var err error
	if config.Handlers, err = handlers(b.opened, b.catalog.env); err != nil {
		return nil, err
	}
	own, err := admissionPlugins(b.opened.plan, b.catalog.env, b.catalog.hooks, b.signals.stopping)
	if err != nil {
		return nil, err
	}
	service, err := storage.configure(&config, own)
	if err != nil {
		return nil, err
	}
	if err := (queries{b.opened.plan, b.model.schemes, b.model.stores, storage}).addTo(&config); err != nil {
		return nil, err
	}
	config.Ready, config.Metrics = b.readyChecks(service), b.metrics(service, memory)
	server, err := upstream.New(config)
	if err != nil {
		return nil, err
	}
	closing.run(server.Destroy)
	return &api{server, service, config.Ready}, nil
}

// config returns the configuration without the parts that depend on the mode.
func (b apiBuilder) config(ctx context.Context, memory *budget.Budget) upstream.Config {
	o := &b.opened.plan.Options
	recorders := b.opened.recorders
	return upstream.Config{
		Definition:     b.opened.plan.Definition,
		Machinery:      b.model.schemes,
		Stores:         b.model.stores,
		Kinds:          b.catalog.kinds,
		Loopback:       b.opened.loopback.Config(),
		Address:        b.opened.listeners.address(),
		AuditSink:      recorders.audit.Sink(),
		AuditPolicy:    recorders.audit.Policy(),
		AccessLog:      recorders.accessLog.Handler(),
		Requests:       recorders.requests,
		LongRunning:    maintenance.Handlers(b.model.tools),
		Memory:         memory,
		Tracing:        recorders.tracing,
		Serving:        o.Serving,
		RequestTimeout: o.RequestTimeout,
		Stopping:       b.signals.stopping,
		CheckPeriod:    standing.PeriodFrom(ctx),
		NoFastPath:     o.DisableFastPath,
	}
}

func (b apiBuilder) readyChecks(service modeService) []healthz.HealthChecker {
	storages := b.opened.storages
	checks := append(b.opened.encryption.HealthChecks(), storages.editsChecks()...)
	for _, storage := range storages {
		name := "storage"
		if len(storages) > 1 {
			name += "-" + storage.Name()
		}
		checks = append(checks, healthz.NamedCheck(name, func(*http.Request) error { return storage.health() }))
	}
	return append(slices.Concat(checks, service.checks()),
		healthz.NamedCheck("stopping", func(*http.Request) error {
			select {
			case <-b.signals.draining:
				return errors.New("the server is shutting down")
			default:
				return nil
			}
		}),
	)
}

// metrics returns the metrics of the server and of its storages, without upstream's.
func (b apiBuilder) metrics(service modeService, memory *budget.Budget) []prometheus.Collector {
	o := b.opened
	all := append(budgetMetrics(memory), encryptionMetrics{o.encryption, o.storages}, encodingMetrics{b.contents.encodings})
	all = slices.Concat(all, listItemsMetrics(b.model.schemes.Items()), service.metrics(),
		o.recorders.audit.Metrics(), o.recorders.accessLog.Metrics())
	if b.catalog.operations != nil {
		all = append(all, b.catalog.operations.Metrics()...)
	}
	for _, storage := range o.storages {
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
