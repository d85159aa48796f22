package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// errEphemeral is returned for a storage that exists only while its server runs.
var errEphemeral = errors.New("is there only while its server runs")

// driverEnv returns the environment of a storage's driver. Maintenance tools set idle.
func driverEnv(ctx context.Context, s *plan.Storage, idle bool) driver.Env {
	return s.Env(slog.New(logr.ToSlogHandler(klog.FromContext(ctx))), idle)
}

// openStored opens a storage. The journal is nil for a backend with its own revisions. The context bounds only the
// opening.
func openStored(ctx context.Context, s *plan.Storage, env driver.Env, core mvcc.Options) (store.Backend, journal.Journal, error) {
	switch d := s.Driver.(type) {
	case store.Driver:
		backend, err := d.OpenBackend(ctx, env)
		return backend, nil, err
	case driver.Journal:
		j, err := d.OpenJournal(ctx, env)
		if err != nil {
			return nil, nil, err
		}
		core.Resident = d.Traits().Ephemeral
		backend, err := mvcc.Open(ctx, j, core)
		if err != nil {
			return nil, nil, err // the core has closed the journal
		}
		return backend, j, nil
	}
	return nil, nil, fmt.Errorf(
		"storage %s: %T cannot be opened: it is neither a driver of a backend nor one of a journal",
		s.Name(),
		s.Driver,
	)
}

// openForServer opens a storage for a server, after completing an interrupted restore.
func openForServer(ctx context.Context, s *plan.Storage, core mvcc.Options) (store.Backend, journal.Journal, error) {
	if inDirectory(s) {
		if err := maintenance.FinishRestore(s.Where()); err != nil {
			return nil, nil, err
		}
	}
	return openStored(ctx, s, driverEnv(ctx, s, false), core)
}

// openIdle opens a storage without background work, or with scan only its records. The directory of the storage
// must exist. For an ephemeral storage it returns an error that matches errEphemeral.
func openIdle(ctx context.Context, p *plan.Plan, s *plan.Storage, scan bool) (*maintenance.Storage, error) {
	if s.Traits().Ephemeral {
		return nil, fmt.Errorf("what is stored in %s %w", s.Name(), errEphemeral)
	}
	env := driverEnv(ctx, s, true)
	if d, ok := s.Driver.(driver.Directory); ok {
		if err := maintenance.FinishRestore(s.Where()); err != nil {
			return nil, err
		}
		if err := d.Present(s.Where()); err != nil {
			return nil, fmt.Errorf("there is no storage %s in %s: %w", s.Name(), env.DataDir, err)
		}
		if scan {
			return &maintenance.Storage{
				Name: s.Name(),
				Records: func(ctx context.Context, yield func(journal.Record) error, damaged func(*journal.Damage)) (uint64, error) {
					return d.Scan(ctx, s.Where(), yield, damaged)
				},
			}, nil
		}
	}
	backend, _, err := openStored(ctx, s, env, mvcc.Options{History: history(&p.Options), Idle: true})
	if err != nil {
		return nil, err
	}
	return maintained(s.Name(), backend)
}
