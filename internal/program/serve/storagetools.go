package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// ToolOptions are the options of the storage tools, besides the options of the server.
type ToolOptions struct {
	// Kubeconfig is a kubeconfig for a running server. If it is empty and a server is using the data directory, the
	// kubeconfig in the data directory is used.
	Kubeconfig string
	// Only selects one of several storages; empty selects all.
	Only string
	// Scan is for verification: it reads the records without opening a storage that may be damaged.
	Scan bool
}

// OpenTools returns the storage tools for a server. They work through the server if it runs, and else on its
// storages. While these are open, no server can start in the data directory. OpenTools creates nothing.
func OpenTools(ctx context.Context, p *plan.Plan, tools ToolOptions) (maintenance.Tools, error) {
	if tools.Kubeconfig != "" {
		remote, err := dial(tools.Kubeconfig, "", tools.Only)
		if err != nil {
			return nil, err
		}
		return remote, nil
	}
	options := &p.Options
	if err := checkServerOf(p); err != nil {
		return nil, err
	}
	lock, err := lockExisting(options.DataDir)
	if errors.Is(err, journal.ErrLocked) {
		kubeconfig := p.Path("kubeconfig")
		if _, err := os.Stat(kubeconfig); err != nil {
			return nil, fmt.Errorf(
				"a server is using %s, but its kubeconfig does not exist: set ToolOptions.Kubeconfig: %w",
				options.DataDir,
				err,
			)
		}
		remote, err := dial(kubeconfig, p.Definition.Name, tools.Only)
		if err != nil {
			return nil, err
		}
		if err := remote.Reach(ctx); errors.Is(err, syscall.ECONNREFUSED) {
			return nil, errors.Join(fmt.Errorf("%s is in use, but no server answers at %s: another storage verb is using it, or a server "+
				"is starting or stopping: try again later", options.DataDir, remote.Address()), remote.Close())
		}
		return remote, nil
	}
	if err != nil {
		return nil, err
	}
	if err := checkDataDir(p); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	keys, err := encryption.Open(ctx, encryption.Options{File: options.EncryptionConfigFile, Server: p.Definition.Name})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	local, err := openLocal(ctx, p, keys, tools)
	if err != nil {
		keys.Close()
		return nil, errors.Join(err, lock.Close())
	}
	closing := local.OnClose
	local.OnClose = func() error {
		defer keys.Close()
		return errors.Join(closing(), lock.Close())
	}
	return local, nil
}

func dial(kubeconfig, name, only string) (*maintenance.Remote, error) {
	known, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if known.Contexts[name] == nil {
		name = known.CurrentContext
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*known, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return maintenance.Dial(config, only)
}

// lockExisting locks a data directory if it exists.
func lockExisting(dir string) (io.Closer, error) {
	if dir == "" {
		return io.NopCloser(nil), nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return lockDataDir(dir)
}

// openLocal opens the storages of a stopped server.
func openLocal(ctx context.Context, p *plan.Plan, keys *encryption.Encryption, tools ToolOptions) (*maintenance.Local, error) {
	local, err := newLocal(p, keys)
	if err != nil {
		return nil, err
	}
	var opened []store.Backend
	local.OnClose = func() error {
		var errs []error
		for _, backend := range opened {
			errs = append(errs, backend.Close())
		}
		return errors.Join(errs...)
	}
	for _, planned := range p.Storages {
		if tools.Only != "" && tools.Only != planned.Name() {
			local.Storages = append(local.Storages, maintenance.Storage{Name: planned.Name()})
			continue // it exists, but is not opened
		}
		s, err := openIdle(ctx, p, planned, tools.Scan)
		if errors.Is(err, errEphemeral) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, local.Close())
		}
		if s.Backend != nil {
			opened = append(opened, s.Backend)
		}
		local.Storages = append(local.Storages, *s)
	}
	if len(local.Storages) == 0 {
		return nil, errors.New("the storage memory exists only while the server runs: set ToolOptions.Kubeconfig for the running server")
	}
	all := stopped{local, p.Definition}
	local.Readable = func(ctx context.Context) error { return keys.Check(ctx, all) }
	rewritable(local, keys, all.open)
	only, err := local.Only(tools.Only)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return only, nil
}

// newLocal returns tools with the server's resources and no storage yet.
func newLocal(p *plan.Plan, keys value.ResourceTransformers) (*maintenance.Local, error) {
	machinery, err := convert.New(p.Definition, coreapi.AddToScheme)
	if err != nil {
		return nil, err
	}
	return describeStores(p, machinery, newStores(p, nil, machinery, keys))
}

// describeStores returns tools with the resources of the stores and no storage yet.
func describeStores(p *plan.Plan, machinery *convert.Machinery, stores *registry.Stores) (*maintenance.Local, error) {
	empty := map[schema.GroupResource]func() runtime.Object{
		coreapi.Resource: func() runtime.Object { return &corev1.Namespace{} },
	}
	for _, k := range p.Definition.Kinds() {
		empty[k.GroupResource()] = k.Hub().New
	}
	local := &maintenance.Local{Server: p.Definition.Name, Version: upstream.Version(), JSON: machinery.StoredJSON}
	if len(p.Storages) > 0 {
		local.Default = p.Storages[0].Name()
	}
	for _, r := range p.Resources {
		options, err := stores.GetRESTOptions(r.GroupResource, nil)
		if err != nil {
			return nil, err
		}
		local.Resources = append(local.Resources, maintenance.Resource{
			Resource:    r.GroupResource,
			Prefix:      options.ResourcePrefix,
			In:          r.Storage.Name(),
			Codec:       options.StorageConfig.Codec,
			New:         empty[r.GroupResource],
			Transformer: options.StorageConfig.Transformer,
			Form:        stores.Form(r.GroupResource),
			Decodes:     func(form convert.Form) bool { return stores.Decodes(r.GroupResource, form) },
		})
	}
	return local, nil
}

// newStores describes the storage of a definition's resources and of namespaces.
func newStores(
	p *plan.Plan,
	backend func(schema.GroupResource) store.Backend,
	machinery *convert.Machinery,
	keys value.ResourceTransformers,
) *registry.Stores {
	stores := registry.NewStores(backend, machinery, p.Definition, map[schema.GroupResource]schema.GroupVersionKind{
		coreapi.Resource: corev1.SchemeGroupVersion.WithKind("Namespace"),
	})
	stores.Transformers, stores.MediaType, stores.Retention = keys, p.MediaType, p.Retention
	return stores
}

// servedTools returns the tools that the running server exposes to clients.
func servedTools(o *opened, schemes *convert.Machinery, stores *registry.Stores) (*maintenance.Local, error) {
	local, err := describeStores(o.plan, schemes, stores)
	if err != nil {
		return nil, err
	}
	rewritable(local, o.encryption, func(r maintenance.Resource) (storage.Interface, error) { return stores.Opened(r.Resource) })
	for _, storage := range o.storages {
		m, err := maintained(storage.Name(), storage.Backend)
		if err != nil {
			return nil, err
		}
		local.Storages = append(local.Storages, *m)
	}
	return local, nil
}

// StoredJSON returns a function that converts stored objects of a definition to JSON, in their stored version.
func StoredJSON(definition *define.Server) (func([]byte) ([]byte, error), error) {
	machinery, err := convert.New(definition, coreapi.AddToScheme)
	if err != nil {
		return nil, err
	}
	return machinery.StoredJSON, nil
}
