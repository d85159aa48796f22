package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/coreapi"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// Storage is an open backend and what it keeps.
type Storage struct {
	// Name is what options call it, such as embedded. Each is opened once.
	Name string
	// Resources are those kept in it, the namespaces among them.
	Resources []schema.GroupResource
	store.Backend
	files *files.Journal // nil if it is not in files
}

// Storages are the backends of a server, the one of its namespaces first.
type Storages []*Storage

// OpenStorages opens the backends that the options name for the resources of a
// definition. It completes the options, and leaves nothing open if it fails. The
// context bounds the opening only.
func OpenStorages(ctx context.Context, definition *define.Server, options Options) (Storages, error) {
	if err := options.Complete(definition); err != nil {
		return nil, err
	}
	at, err := options.place(definition)
	if err != nil {
		return nil, err
	}
	var all Storages
	for _, name := range at.names() {
		storage, err := options.openStorage(ctx, name, filesLayout(definition, at))
		if err != nil {
			if errors.Is(err, journal.ErrDamaged) {
				err = fmt.Errorf("%w; nothing was changed: restore the directory from a copy", err)
			}
			if closing := all.Close(); closing != nil {
				err = fmt.Errorf("%w (and closing: %w)", err, closing)
			}
			return nil, err
		}
		storage.Resources = at.resources(name)
		all = append(all, storage)
	}
	return all, nil
}

// Of returns the backend of a resource, nil if none keeps it.
func (s Storages) Of(resource schema.GroupResource) store.Backend {
	for _, storage := range s {
		if slices.Contains(storage.Resources, resource) {
			return storage.Backend
		}
	}
	return nil
}

// health is nil, or what everybody may know of why the storage takes no writes.
func (s *Storage) health() error {
	switch err := s.Health(); {
	case err == nil:
		return nil
	case s.Name == "etcd":
		return errors.New("etcd does not answer as it should: the server's log says why")
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

// health is what the first storage says that does not work.
func (s Storages) health() error {
	for _, storage := range s {
		if err := storage.Health(); err != nil {
			return err
		}
	}
	return nil
}

// awaitConnected waits for backends that open before they have been reached, as
// etcd's does. They log what they wait for.
func (s Storages) awaitConnected(ctx context.Context) error {
	for _, storage := range s {
		remote, ok := storage.Backend.(interface{ Connected() <-chan struct{} })
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

// files is the storage of that name, nil if it is not in use.
func (s Storages) files() *Storage {
	for _, storage := range s {
		if storage.files != nil {
			return storage
		}
	}
	return nil
}

// connected tells whether awaitConnected would not wait.
func (s Storages) connected() bool {
	return !slices.ContainsFunc(s, func(storage *Storage) bool {
		remote, ok := storage.Backend.(interface{ Connected() <-chan struct{} })
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

// checkPlaces refuses to serve a kind that has moved to another group without its
// objects. Where there are some in both places, it only says so.
func (s *Server) checkPlaces(ctx context.Context) error {
	for _, k := range s.definition.Kinds() {
		if len(k.Also) == 0 || !k.IsStored() {
			continue
		}
		places, empty, err := s.stores.Misplaced(ctx, k)
		switch {
		case err != nil:
			return fmt.Errorf("look for objects of %s: %w", k.GroupResource(), err)
		case empty:
			return fmt.Errorf("objects of %s are stored under %s, where nothing looks for them: the kind needs StoredUnder(%q, %q)", k.GroupResource(), places[0], places[0].Group, places[0].Resource)
		case len(places) > 0:
			klog.FromContext(ctx).Error(nil, "Objects are stored where nothing looks for them", "resource", k.GroupResource(), "storedUnder", k.StoredUnder, "others", places)
		}
	}
	return nil
}

// placement says in which storage each resource is kept.
type placement map[schema.GroupResource]string

// place finds where the resources of a definition are kept: where the operator says,
// else where the developer says, else in the server's storage. The error names every
// mistake in that.
func (o *Options) place(definition *define.Server) (placement, error) {
	at := placement{}
	if !o.Aggregated {
		at[coreapi.Resource] = o.Storage
	}
	because := map[schema.GroupResource]string{}
	for _, k := range definition.Kinds() {
		if k.SharedWith != nil || !k.IsStored() {
			continue
		}
		at[k.GroupResource()] = o.Storage
		if k.Storage != "" {
			at[k.GroupResource()] = k.Storage
			because[k.GroupResource()] = "StoredIn of kind " + k.Name
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.StorageOf)) {
		resource := schema.ParseGroupResource(name)
		if owner := definition.Owner(resource); owner != resource {
			errs = append(errs, fmt.Errorf("--storage-of %s: its objects are those of %s: name that", name, owner))
			continue
		}
		if resource == coreapi.Resource && o.Aggregated {
			errs = append(errs, fmt.Errorf("--storage-of %s: namespaces are the cluster's when the server is aggregated", name))
			continue
		}
		if _, ok := at[resource]; !ok {
			errs = append(errs, fmt.Errorf("--storage-of %s: this server has no such resource; it has %s", name, at.list()))
			continue
		}
		at[resource] = o.StorageOf[name]
		because[resource] = fmt.Sprintf("--storage-of %s=%s", name, o.StorageOf[name])
	}
	for _, resource := range at.sorted() {
		if because[resource] == "" {
			continue // the server's storage has been checked
		}
		if err := o.checkStorage(at[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", because[resource], err))
		}
	}
	errs = append(errs, at.checkNamespaces(definition))
	if len(o.Etcd.Endpoints) > 0 && !slices.Contains(at.names(), "etcd") {
		errs = append(errs, fmt.Errorf("--etcd-servers is given, but nothing is kept in etcd: the storage is %s", o.Storage))
	}
	return at, errors.Join(errs...)
}

// checkNamespaces refuses objects that outlive their namespaces: nobody could list
// or delete them by those any more.
func (p placement) checkNamespaces(definition *define.Server) error {
	if p[coreapi.Resource] != "memory" {
		return nil
	}
	for _, k := range definition.Kinds() {
		if !k.IsStored() {
			continue
		}
		if kept := p[k.Owner().GroupResource()]; kept != "memory" && !k.ClusterScoped {
			return fmt.Errorf("%s are kept in %s, but their namespaces in memory, which a restart forgets: add --storage-of namespaces=%s", k.GroupResource(), kept, kept)
		}
	}
	return nil
}

func (p placement) sorted() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(p), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
}

func (p placement) list() string {
	var all []string
	for _, resource := range p.sorted() {
		all = append(all, resource.String())
	}
	return strings.Join(all, ", ")
}

// names are the storages in use, that of the namespaces first.
func (p placement) names() []string {
	var all []string
	if first, ok := p[coreapi.Resource]; ok {
		all = []string{first}
	}
	for _, resource := range p.sorted() {
		if !slices.Contains(all, p[resource]) {
			all = append(all, p[resource])
		}
	}
	return all
}

func (p placement) resources(name string) []schema.GroupResource {
	return slices.DeleteFunc(p.sorted(), func(resource schema.GroupResource) bool { return p[resource] != name })
}
