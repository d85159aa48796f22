package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/coreapi"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/encryption"
	"github.com/annexapi/annex/internal/maintenance"
	"github.com/annexapi/annex/internal/mvcc"
	"github.com/annexapi/annex/internal/registry"
	"github.com/annexapi/annex/internal/upstream"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// ToolOptions say what the storage tools work on, beside the options of the server.
type ToolOptions struct {
	// Kubeconfig is the way to a running server. If it is empty, the one in the data
	// directory is used if a server is using that.
	Kubeconfig string
	// Only names one storage of several; empty is all.
	Only string
	// Scan is for verifying: it does not open what may be damaged.
	Scan bool
}

// OpenTools returns the storage tools for a server: for one that runs, if there is
// one, else for what it has stored. While they are open, no server can start in the
// data directory. Nothing is created.
func OpenTools(ctx context.Context, definition *define.Server, options Options, tools ToolOptions) (maintenance.Tools, error) {
	if tools.Kubeconfig != "" {
		remote, err := dial(tools.Kubeconfig, "", tools.Only)
		if err != nil {
			return nil, err
		}
		return remote, nil
	}
	if err := options.Complete(definition); err != nil {
		return nil, err
	}
	lock, err := lockExisting(options.DataDir)
	if errors.Is(err, journal.ErrLocked) {
		if len(options.Etcd.Endpoints) > 0 {
			if _, err := options.place(definition); err != nil {
				return nil, err
			}
		}
		kubeconfig := options.path("kubeconfig")
		if _, err := os.Stat(kubeconfig); err != nil {
			return nil, fmt.Errorf("a server is using %s, but its kubeconfig is not there: name it with --kubeconfig: %w", options.DataDir, err)
		}
		remote, err := dial(kubeconfig, definition.Name, tools.Only)
		if err != nil {
			return nil, err
		}
		if err := remote.Reach(ctx); errors.Is(err, syscall.ECONNREFUSED) {
			return nil, errors.Join(fmt.Errorf("%s is in use, but no server answers at %s: another storage verb has it open, or a server is starting or ending; try again when that has ended", options.DataDir, remote.Address()), remote.Close())
		}
		return remote, nil
	}
	if err != nil {
		return nil, err
	}
	keys, err := encryption.Open(ctx, encryption.Options{File: options.EncryptionConfigFile, Server: definition.Name})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	local, err := options.local(ctx, definition, keys, tools)
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

// lockExisting locks a data directory, if it is there.
func lockExisting(dir string) (io.Closer, error) {
	if dir == "" {
		return io.NopCloser(nil), nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return lockDataDir(dir)
}

// local opens what a stopped server has stored.
func (o *Options) local(ctx context.Context, definition *define.Server, keys *encryption.Encryption, tools ToolOptions) (*maintenance.Local, error) {
	at, err := o.place(definition)
	if err != nil {
		return nil, err
	}
	media, err := o.mediaTypes(definition, at)
	if err != nil {
		return nil, err
	}
	local, err := newLocal(definition, at, media, keys)
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
	for _, name := range at.names() {
		if tools.Only != "" && tools.Only != name {
			local.Storages = append(local.Storages, maintenance.Storage{Name: name})
			continue // it is there, but not opened
		}
		s, err := o.openIdle(ctx, name, filesLayout(definition, at), tools.Scan)
		if err != nil {
			return nil, errors.Join(err, local.Close())
		}
		if s == nil {
			continue
		}
		if s.Backend != nil {
			opened = append(opened, s.Backend)
		}
		local.Storages = append(local.Storages, *s)
	}
	if len(local.Storages) == 0 {
		return nil, errors.New("what is stored in memory is there only while the server runs: name its --kubeconfig")
	}
	all := stopped{local, definition}
	local.Readable = func(ctx context.Context) error { return keys.Check(ctx, all) }
	rewritable(local, keys, all.open)
	only, err := local.Only(tools.Only)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return only, nil
}

// openIdle opens a storage in which nothing happens by itself; nil if it is one that
// only a running server has.
func (o *Options) openIdle(ctx context.Context, name string, layout []files.Resource, scan bool) (*maintenance.Storage, error) {
	switch name {
	case "memory":
		return nil, nil
	case "etcd":
		backend, err := o.open(ctx, name)
		if err != nil {
			return nil, err
		}
		return maintained(name, backend)
	}
	dir, err := o.existing(name)
	if err != nil {
		return nil, err
	}
	if scan {
		return &maintenance.Storage{Name: name, Records: scanner(name, dir)}, nil
	}
	j, err := o.journal(klog.FromContext(ctx), name, layout)
	if err != nil {
		return nil, err
	}
	core, err := mvcc.Open(ctx, j, mvcc.Options{History: o.history(), Idle: true})
	if err != nil {
		return nil, err
	}
	return maintained(name, core)
}

// existing returns the directory of a storage, which must be there.
func (o *Options) existing(name string) (string, error) {
	dir := o.dir(name)
	if err := maintenance.FinishRestore(dir); err != nil {
		return "", err
	}
	marker := dir
	if name == "files" {
		marker = filepath.Join(dir, files.StateFile)
	}
	if _, err := os.Stat(marker); err != nil {
		return "", fmt.Errorf("there is no storage %s in %s: %w", name, o.DataDir, err)
	}
	return dir, nil
}

func scanner(name, dir string) maintenance.Records {
	return func(ctx context.Context, yield func(journal.Record) error, damaged func(*journal.Damage)) (uint64, error) {
		if name == "files" {
			return files.Scan(ctx, dir, embedded.Options{Logger: slog.New(slog.DiscardHandler)}, yield, damaged)
		}
		return embedded.Scan(ctx, dir, embedded.Options{Logger: slog.New(slog.DiscardHandler)}, yield, damaged)
	}
}

// maintained returns an open backend as the tools take it.
func maintained(name string, backend store.Backend) (*maintenance.Storage, error) {
	m, ok := backend.(store.Maintenance)
	if !ok {
		return nil, fmt.Errorf("storage %s cannot be maintained", name)
	}
	s := &maintenance.Storage{Name: name, Backend: m}
	if core, ok := backend.(*mvcc.Core); ok {
		s.Records = core.Scan
	}
	return s, nil
}

// newLocal returns tools that know a server's resources, but no storage yet.
func newLocal(definition *define.Server, at placement, media mediaTypes, keys value.ResourceTransformers) (*maintenance.Local, error) {
	machinery, err := convert.New(definition, coreapi.AddToScheme)
	if err != nil {
		return nil, err
	}
	stores := newStores(nil, machinery, definition)
	stores.Transformers, stores.MediaTypes = keys, media
	empty := map[schema.GroupResource]func() runtime.Object{
		coreapi.Resource: func() runtime.Object { return &corev1.Namespace{} },
	}
	for _, k := range definition.Kinds() {
		empty[k.GroupResource()] = k.Hub().New
	}
	local := &maintenance.Local{Server: definition.Name, Version: upstream.Version(), Default: at.home(), JSON: machinery.StoredJSON}
	for _, resource := range at.sorted() {
		options, err := stores.GetRESTOptions(resource, nil)
		if err != nil {
			return nil, err
		}
		local.Resources = append(local.Resources, maintenance.Resource{
			Resource:    resource,
			Prefix:      options.ResourcePrefix,
			In:          at[resource],
			Codec:       options.StorageConfig.Codec,
			New:         empty[resource],
			Transformer: options.StorageConfig.Transformer,
			Form:        stores.Form(resource),
			Decodes:     func(form convert.Form) bool { return stores.Decodes(resource, form) },
		})
	}
	return local, nil
}

// home is the storage of what belongs to no resource.
func (p placement) home() string {
	if names := p.names(); len(names) > 0 {
		return names[0]
	}
	return ""
}

// everything says that all resources of a definition are kept in one storage.
func everything(definition *define.Server, name string) placement {
	at := placement{coreapi.Resource: name}
	for _, k := range definition.Kinds() {
		if k.IsStored() {
			at[k.Owner().GroupResource()] = name
		}
	}
	return at
}

// newStores describes the storage of a definition's resources and of namespaces.
func newStores(backend func(schema.GroupResource) store.Backend, machinery *convert.Machinery, definition *define.Server) *registry.Stores {
	return registry.NewStores(backend, machinery, definition, map[schema.GroupResource]schema.GroupVersionKind{
		coreapi.Resource: corev1.SchemeGroupVersion.WithKind("Namespace"),
	})
}

// maintenance are the tools that the running server lets others use.
func (s *Server) maintenance(stores *registry.Stores) (*maintenance.Local, error) {
	at, err := s.options.place(s.definition)
	if err != nil {
		return nil, err
	}
	local, err := newLocal(s.definition, at, s.media, s.encryption)
	if err != nil {
		return nil, err
	}
	rewritable(local, s.encryption, func(r maintenance.Resource) (storage.Interface, error) { return stores.Opened(r.Resource) })
	for _, storage := range s.storages {
		m, err := maintained(storage.Name, storage.Backend)
		if err != nil {
			return nil, err
		}
		local.Storages = append(local.Storages, *m)
	}
	return local, nil
}

// StoredJSON returns what turns stored objects of a definition into JSON, in the
// version that they are stored in.
func StoredJSON(definition *define.Server) (func([]byte) ([]byte, error), error) {
	machinery, err := convert.New(definition, coreapi.AddToScheme)
	if err != nil {
		return nil, err
	}
	return machinery.StoredJSON, nil
}

// PrefixOf returns what the keys of a resource begin with, empty if a definition has
// no such resource, and the names of those that it has.
func PrefixOf(definition *define.Server, resource schema.GroupResource) (prefix string, known []string, err error) {
	local, err := newLocal(definition, everything(definition, ""), nil, nil)
	if err != nil {
		return "", nil, err
	}
	for _, r := range local.Resources {
		if r.Resource == definition.Owner(resource) {
			prefix = r.Prefix
		}
		known = append(known, r.Resource.String())
	}
	return prefix, known, nil
}
