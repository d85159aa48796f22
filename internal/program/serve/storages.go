package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// errEphemeral is returned for a storage that exists only while its server runs.
var errEphemeral = errors.New("exists only while its server runs")

// Storage is an open backend with its part of the plan.
type Storage struct {
	*plan.Storage
	store.Backend
	edited driver.Edited // nil if the storage has no editable files
}

// Storages are the backends of a server, the backend of the namespaces first.
type Storages []*Storage

// openStorages opens the storages of a plan. On an error it leaves nothing open. The context bounds only the
// opening.
func openStorages(ctx context.Context, p *plan.Plan) (Storages, error) {
	var all Storages
	for _, planned := range p.Storages {
		backend, j, err := openForServer(ctx, planned, coreOptions(&p.Options))
		if err != nil {
			if errors.Is(err, journal.ErrDamaged) {
				err = fmt.Errorf("%w; nothing was changed: restore the directory from a copy", err)
			}
			if closing := all.Close(); closing != nil {
				err = fmt.Errorf("%w (and closing: %w)", err, closing)
			}
			return nil, err
		}
		edited, _ := j.(driver.Edited)
		all = append(all, &Storage{planned, backend, edited})
	}
	return all, nil
}

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
		"storage %s: %T cannot be opened: it is neither a driver of a backend nor of a journal",
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
		return nil, fmt.Errorf("the storage %s %w", s.Name(), errEphemeral)
	}
	env := driverEnv(ctx, s, true)
	if d, ok := s.Driver.(driver.Directory); ok {
		if err := maintenance.FinishRestore(s.Where()); err != nil {
			return nil, err
		}
		if err := d.Present(s.Where()); err != nil {
			return nil, fmt.Errorf("storage %s does not exist in %s: %w", s.Name(), env.DataDir, err)
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
	backend, _, err := openStored(ctx, s, env, mvcc.Options{History: historyRules(&p.Options), Idle: true})
	if err != nil {
		return nil, err
	}
	return maintained(s.Name(), backend)
}

// inDirectory reports whether a storage keeps its objects in a directory.
func inDirectory(s *plan.Storage) bool {
	_, ok := s.Driver.(driver.Directory)
	return ok
}

// maintained wraps an open backend for the tools.
func maintained(name string, backend store.Backend) (*maintenance.Storage, error) {
	m, ok := backend.(store.Maintenance)
	if !ok {
		return nil, fmt.Errorf("storage %s does not support maintenance", name)
	}
	s := &maintenance.Storage{Name: name, Backend: m}
	if core, ok := backend.(*mvcc.Core); ok {
		s.Records = core.Scan
	}
	return s, nil
}

// coreOptions returns the options of the mvcc core above a storage's journal.
func coreOptions(o *config.Options) mvcc.Options {
	return mvcc.Options{History: historyRules(o), ObjectCacheBytes: o.ObjectCacheSize, ValueBytes: o.ValueCacheSize, Clock: o.Clock}
}

func historyRules(o *config.Options) mvcc.History {
	return mvcc.History{MinAge: o.HistoryAge, MinRevisions: o.HistoryRevisions, MaxBytes: o.HistoryBytes}
}

// Of returns the backend of a resource; nil if no backend holds it.
func (s Storages) Of(resource schema.GroupResource) store.Backend {
	for _, storage := range s {
		if slices.Contains(storage.Resources, resource) {
			return storage.Backend
		}
	}
	return nil
}

// OfAny returns the backend of a resource; for resources that are not in the plan, the server's default backend.
func (s Storages) OfAny(resource schema.GroupResource) store.Backend {
	if backend := s.Of(resource); backend != nil || len(s) == 0 {
		return backend
	}
	return s[0].Backend
}

// health returns nil, or the reason why the storage accepts no writes, in a form that anonymous callers of /readyz
// may see.
func (s *Storage) health() error {
	switch err := s.Health(); {
	case err == nil:
		return nil
	case s.Traits().Remote:
		return fmt.Errorf("%s does not answer correctly: see the server's log", s.Name())
	case errors.Is(err, journal.ErrDirectoryGone):
		return errors.New("read-only, its directory was removed: restore it")
	case errors.Is(err, journal.ErrLockLost):
		return errors.New("read-only, its lock file was removed and another server may be using its directory: stop all of them and start one")
	case errors.Is(err, journal.ErrUnresponsive):
		return errors.New("its directory does not respond: check the disk or the mount")
	case errors.Is(err, journal.ErrTransient) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)):
		return errors.New("read-only, too many files are open: recovers by itself when files can be opened")
	case errors.Is(err, journal.ErrTransient) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return errors.New("read-only, the disk is full: recovers by itself when there is space")
	case errors.Is(err, journal.ErrTransient):
		return errors.New("read-only, recovers by itself when the cause is resolved: see the server's log")
	case errors.Is(err, syscall.ENOSPC):
		return errors.New("read-only, the disk is full: free disk space and restart the server")
	default:
		return errors.New("read-only, writing failed: see the server's log")
	}
}

// health returns the error of the first unhealthy storage.
func (s Storages) health() error {
	for _, storage := range s {
		if err := storage.Health(); err != nil {
			return err
		}
	}
	return nil
}

// awaitConnected waits for backends that open before they are connected, such as etcd's. They log the reason of the
// wait.
func (s Storages) awaitConnected(ctx context.Context) error {
	for _, storage := range s {
		remote, ok := storage.Backend.(store.Connecter)
		if !ok {
			continue
		}
		select {
		case <-remote.Connected():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// edited returns the storages with editable files.
func (s Storages) edited() Storages {
	return slices.DeleteFunc(slices.Clone(s), func(storage *Storage) bool { return storage.edited == nil })
}

// connected reports whether every remote backend has been reached once. It does not block; awaitConnected does.
func (s Storages) connected() bool {
	return !slices.ContainsFunc(s, func(storage *Storage) bool {
		remote, ok := storage.Backend.(store.Connecter)
		if !ok {
			return false
		}
		select {
		case <-remote.Connected():
			return false
		default:
			return true
		}
	})
}

// Close closes all backends, the last opened first.
func (s Storages) Close() error {
	var errs []error
	for _, storage := range slices.Backward(s) {
		errs = append(errs, storage.Backend.Close())
	}
	return errors.Join(errs...)
}
