package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

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
		return fmt.Errorf("%s does not answer as it should: the server's log says why", s.Name())
	case errors.Is(err, journal.ErrDirectoryGone):
		return errors.New("read-only, its directory was removed: put it back")
	case errors.Is(err, journal.ErrLockLost):
		return errors.New("read-only, its lock file was removed and another server may be using its directory: stop all of them and start one")
	case errors.Is(err, journal.ErrUnresponsive):
		return errors.New("its directory does not answer: look at the disk or the mount")
	case errors.Is(err, journal.ErrTransient) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)):
		return errors.New("read-only, too many files are open: recovers by itself when files can be opened")
	case errors.Is(err, journal.ErrTransient) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return errors.New("read-only, the disk is full: recovers by itself when there is space")
	case errors.Is(err, journal.ErrTransient):
		return errors.New("read-only, recovers by itself when the cause has passed: the server's log says which")
	case errors.Is(err, syscall.ENOSPC):
		return errors.New("read-only, the disk is full: make space and start the server again")
	default:
		return errors.New("read-only, writing failed: the server's log says why")
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

// checkPlaces returns an error for a kind that has moved to another group while its objects are stored under the
// old group. If there are objects under both groups, it only logs that.
func (s *Server) checkPlaces(ctx context.Context) error {
	for _, k := range s.definition.Kinds() {
		if len(k.Aliases) == 0 || !k.IsStored() {
			continue
		}
		places, empty, err := s.stores.Misplaced(ctx, k)
		switch {
		case err != nil:
			return fmt.Errorf("look for objects of %s: %w", k.GroupResource(), err)
		case empty:
			return fmt.Errorf(
				"objects of %s are stored under %s, where nothing looks for them: the kind needs StoredUnder(%q, %q)",
				k.GroupResource(),
				places[0],
				places[0].Group,
				places[0].Resource,
			)
		case len(places) > 0:
			klog.FromContext(ctx).
				Error(nil, "Objects are stored where nothing looks for them", "resource", k.GroupResource(), "storedUnder", k.StoredUnder, "others",
					places)
		}
	}
	return nil
}
