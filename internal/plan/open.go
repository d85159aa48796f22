package plan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/maintenance"
	"github.com/annexapi/annex/internal/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// ErrEphemeral is about a storage that is there only while its server runs.
var ErrEphemeral = errors.New("is there only while its server runs")

// Env is what the storage's driver gets. Idle is for tools.
func (s *Storage) Env(ctx context.Context, idle bool) driver.Env {
	return driver.Env{DataDir: s.dataDir, Logger: slog.New(logr.ToSlogHandler(klog.FromContext(ctx))), Resources: s.layout, Idle: idle}
}

// Open opens the storage for a server. The journal is nil for a backend with revisions of
// its own. The context bounds the opening only.
func (s *Storage) Open(ctx context.Context, core mvcc.Options) (store.Backend, journal.Journal, error) {
	return s.open(ctx, s.Env(ctx, false), core)
}

// OpenIdle opens what is there for a tool: nothing happens in it by itself. An error
// matching ErrEphemeral says that it is never there.
func (s *Storage) OpenIdle(ctx context.Context, history mvcc.History) (store.Backend, error) {
	if s.Traits().Ephemeral {
		return nil, fmt.Errorf("what is stored in %s %w", s.Name(), ErrEphemeral)
	}
	if d, ok := s.Driver.(driver.Directory); ok {
		if err := s.present(d); err != nil {
			return nil, err
		}
	}
	backend, _, err := s.open(ctx, s.Env(ctx, true), mvcc.Options{History: history, Idle: true})
	return backend, err
}

// Existing returns the driver of a storage in a directory, which must be there.
func (s *Storage) Existing() (driver.Directory, error) {
	d, ok := s.Driver.(driver.Directory)
	if !ok {
		return nil, nil
	}
	return d, s.present(d)
}

func (s *Storage) present(d driver.Directory) error {
	if err := maintenance.FinishRestore(s.Where()); err != nil {
		return err
	}
	if err := d.Present(s.Where()); err != nil {
		return fmt.Errorf("there is no storage %s in %s: %w", s.Name(), s.dataDir, err)
	}
	return nil
}

func (s *Storage) open(ctx context.Context, env driver.Env, core mvcc.Options) (store.Backend, journal.Journal, error) {
	switch d := s.Driver.(type) {
	case store.Driver:
		backend, err := d.OpenBackend(ctx, env)
		return backend, nil, err
	case driver.Journal:
		if _, ok := d.(driver.Directory); ok {
			if err := maintenance.FinishRestore(s.Where()); err != nil {
				return nil, nil, err
			}
		}
		j, err := d.OpenJournal(ctx, env)
		if err != nil {
			return nil, nil, err
		}
		backend, err := mvcc.Open(ctx, j, core)
		if err != nil {
			return nil, nil, err // the core has closed the journal
		}
		return backend, j, nil
	}
	return nil, nil, fmt.Errorf("storage %s: %T cannot be opened: it is neither a driver of a backend nor one of a journal", s.Name(), s.Driver)
}
