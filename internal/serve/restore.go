package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/encryption"
	"github.com/annexapi/annex/internal/maintenance"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// CopyOptions say how objects get into a storage.
type CopyOptions struct {
	// Bump is by how much revisions are raised above those that clients may know.
	// It does not apply to an etcd that runs.
	Bump uint64
	// EtcdSnapshot is a file to write for etcdutl snapshot restore, instead of
	// writing into a storage. EtcdPrefix begins its keys.
	EtcdSnapshot, EtcdPrefix string
	// Replace moves a storage aside that is there already.
	Replace bool
	maintenance.CopyOptions
}

// Copied says what was done to one storage.
type Copied struct {
	Storage string `json:"storage"`
	maintenance.Copied
	// Skipped is set for a storage in memory, which nothing can be restored to.
	Skipped bool `json:"skipped,omitempty"`
}

// Restore puts what is in a backup where a server with these options stores it. The
// backup is read to the end before anything is changed, and no server may use the
// data directory.
func Restore(ctx context.Context, definition *define.Server, options Options, file string, how CopyOptions) (maintenance.Contents, []Copied, error) {
	contents, err := checkFile(file)
	if err != nil {
		return contents, nil, err
	}
	if err := options.Complete(definition); err != nil {
		return contents, nil, err
	}
	at, err := options.place(definition)
	if err != nil {
		return contents, nil, err
	}
	if how.EtcdSnapshot != "" {
		how.EtcdPrefix = options.Etcd.Prefix
	}
	names := slices.DeleteFunc(at.names(), func(name string) bool { return name == "memory" })
	if len(names) == 0 && how.EtcdSnapshot == "" {
		return contents, nil, errors.New("nothing can be restored to the storage memory, which lives as long as its server")
	}
	c, err := newCopier(ctx, definition, options, at, how)
	if err != nil {
		return contents, nil, err
	}
	defer c.close()
	source := maintenance.Source{Name: "the backup", Values: fileValues(file)}
	for _, s := range contents.Storages {
		source.Revision = max(source.Revision, s.Revision)
	}
	if how.EtcdSnapshot != "" {
		done, err := c.snapshot(ctx, source)
		return contents, []Copied{done}, err
	}

	if err := c.lock(options.DataDir, slices.ContainsFunc(names, func(name string) bool { return name != "etcd" })); err != nil {
		return contents, nil, err
	}
	for _, name := range names {
		if err := c.mayFill(name, options); err != nil {
			return contents, nil, err
		}
	}
	var all []Copied
	for _, name := range at.names() {
		if name == "memory" {
			all = append(all, Copied{Storage: name, Skipped: true})
			continue
		}
		part := source
		part.Values = func(ctx context.Context) iter.Seq2[store.Value, error] {
			return c.local.In(name, source.Values(ctx))
		}
		var done Copied
		if name == "etcd" {
			done, err = c.intoOpen(ctx, part, name, options)
		} else {
			done, err = c.intoDirectory(ctx, part, name, options)
		}
		if err != nil {
			return contents, all, err
		}
		all = append(all, done)
	}
	return contents, all, nil
}

func checkFile(file string) (maintenance.Contents, error) {
	f, err := os.Open(file)
	if err != nil {
		return maintenance.Contents{}, err
	}
	defer f.Close()
	contents, err := maintenance.Check(f)
	if err != nil {
		return contents, fmt.Errorf("%s: %w; nothing was changed", file, err)
	}
	return contents, nil
}

// fileValues are those in a backup.
func fileValues(file string) func(context.Context) iter.Seq2[store.Value, error] {
	return func(context.Context) iter.Seq2[store.Value, error] {
		return func(yield func(store.Value, error) bool) {
			f, err := os.Open(file)
			if err != nil {
				yield(store.Value{}, err)
				return
			}
			defer f.Close()
			r, err := maintenance.NewReader(f)
			for err == nil {
				var v store.Value
				if _, v, err = r.Next(); err == nil && !yield(v, nil) {
					return
				}
			}
			if err != io.EOF {
				yield(store.Value{}, fmt.Errorf("%s: %w", file, err))
			}
		}
	}
}

// Migrate copies all objects of one storage of a stopped server to another one. to
// says where that is. The source is not changed.
func Migrate(ctx context.Context, definition *define.Server, from, to Options, how CopyOptions) (_ Copied, err error) {
	for _, side := range []*Options{&from, &to} {
		if side == &to && how.EtcdSnapshot != "" {
			continue
		}
		side.StorageOf = nil
		if side.Storage == "memory" {
			return Copied{}, errors.New("the storage memory lives as long as its server: nothing can be migrated from it or to it")
		}
		if err := side.checkStorage(side.Storage); err != nil {
			return Copied{}, err
		}
	}
	if how.EtcdSnapshot == "" && same(from, to) {
		return Copied{}, errors.New("the storage to migrate to is the one to migrate from")
	}
	c, err := newCopier(ctx, definition, from, everything(definition, to.Storage), how)
	if err != nil {
		return Copied{}, err
	}
	defer c.close()
	if err := c.lock(from.DataDir, false); err != nil {
		return Copied{}, err
	}
	opened, err := from.openIdle(ctx, from.Storage, filesLayout(definition, everything(definition, from.Storage)), false)
	if err != nil {
		return Copied{}, err
	}
	defer func() { err = errors.Join(err, opened.Backend.Close()) }()
	snapshot, err := opened.Backend.Snapshot(ctx)
	if err != nil {
		return Copied{}, err
	}
	defer snapshot.Close()
	source := maintenance.Source{Name: from.where(), Revision: snapshot.Revision(), Values: snapshot.Values}
	if how.EtcdSnapshot != "" {
		return c.snapshot(ctx, source)
	}

	if err := c.lock(to.DataDir, to.Storage != "etcd"); err != nil {
		return Copied{}, err
	}
	if to.Storage == "etcd" {
		return c.intoOpen(ctx, source, to.Storage, to)
	}
	if err := maintenance.FinishRestore(to.dir(to.Storage)); err != nil {
		return Copied{}, err
	}
	empty, err := maintenance.IsEmpty(to.dir(to.Storage))
	if err != nil {
		return Copied{}, err
	}
	if empty || how.Replace {
		return c.intoDirectory(ctx, source, to.Storage, to)
	}
	return c.intoOpen(ctx, source, to.Storage, to)
}

// where says which storage the options mean.
func (o *Options) where() string {
	if o.Storage == "etcd" {
		return "etcd"
	}
	return o.Storage + " in " + o.DataDir
}

// same says whether two options mean the same storage.
func same(a, b Options) bool {
	if a.Storage != b.Storage {
		return false
	}
	if a.Storage == "etcd" {
		return slices.Equal(a.Etcd.Endpoints, b.Etcd.Endpoints) && string(etcd.ValueContext(a.Etcd.Prefix, "")) == string(etcd.ValueContext(b.Etcd.Prefix, ""))
	}
	return filepath.Clean(a.dir(a.Storage)) == filepath.Clean(b.dir(b.Storage))
}

// copier gets objects into storages.
type copier struct {
	local  *maintenance.Local
	layout []files.Resource
	keys   *encryption.Encryption
	how    CopyOptions
	locks  []io.Closer
	locked []string // their directories
}

func newCopier(ctx context.Context, definition *define.Server, options Options, at placement, how CopyOptions) (*copier, error) {
	keys, err := encryption.Open(ctx, encryption.Options{File: options.EncryptionConfigFile, Server: definition.Name})
	if err != nil {
		return nil, err
	}
	to := at
	if how.EtcdSnapshot != "" {
		to = everything(definition, "etcd")
	}
	media, err := options.mediaTypes(definition, to)
	if err != nil {
		keys.Close()
		return nil, err
	}
	local, err := newLocal(definition, at, media, keys)
	if err != nil {
		keys.Close()
		return nil, err
	}
	return &copier{local: local, layout: filesLayout(definition, at), keys: keys, how: how}, nil
}

func (c *copier) close() {
	for _, lock := range c.locks {
		_ = lock.Close() // nothing is written
	}
	c.keys.Close()
}

// lock keeps servers out of a data directory. If it is not there, it is made, or
// there is nothing to lock.
func (c *copier) lock(dir string, create bool) error {
	if dir == "" || slices.Contains(c.locked, filepath.Clean(dir)) {
		return nil
	}
	lockDir := lockExisting
	if create {
		lockDir = lockDataDir
	}
	lock, err := lockDir(dir)
	if errors.Is(err, journal.ErrLocked) {
		return fmt.Errorf("%w: stop the server first", err)
	}
	if err != nil {
		return err
	}
	c.locks, c.locked = append(c.locks, lock), append(c.locked, filepath.Clean(dir))
	return nil
}

// mayFill refuses a directory that is not empty, unless it is to be replaced, and one
// that cannot be: of several storages, none is touched then.
func (c *copier) mayFill(name string, options Options) error {
	if name == "etcd" {
		return nil
	}
	dir := options.dir(name)
	if err := maintenance.FinishRestore(dir); err != nil {
		return err
	}
	empty, err := maintenance.IsEmpty(dir)
	if err == nil && !empty && !c.how.Replace {
		err = fmt.Errorf("%s: %w: --replace moves it aside", dir, maintenance.ErrNotEmpty)
	}
	return err
}

func (c *copier) intoDirectory(ctx context.Context, source maintenance.Source, name string, options Options) (Copied, error) {
	dir := options.dir(name)
	before := uint64(0)
	if empty, err := maintenance.IsEmpty(dir); err != nil {
		return Copied{}, err
	} else if !empty {
		if before, err = lastRevision(ctx, name, dir); err != nil {
			klog.FromContext(ctx).Error(err, "The storage that is replaced does not tell its revision; that of the source is raised", "by", c.how.Bump)
		}
	}
	base, err := maintenance.Above(source.Revision, before, c.how.Bump)
	if err != nil {
		return Copied{}, err
	}
	open := func(dir string) (journal.Journal, error) {
		return options.openJournal(klog.FromContext(ctx), name, dir, c.layout)
	}
	values := c.local.Recoded(ctx, source.Values(ctx), func(key string) value.DefaultContext { return value.DefaultContext(key) })
	done, err := maintenance.FillDirectory(ctx, open, dir, base, values, c.how.Replace)
	return Copied{Storage: name, Copied: done}, err
}

// lastRevision reads the newest revision of a storage in a directory.
func lastRevision(ctx context.Context, name, dir string) (uint64, error) {
	if name == "files" {
		return files.LastRevision(ctx, dir)
	}
	return embedded.LastRevision(ctx, dir)
}

func (c *copier) intoOpen(ctx context.Context, source maintenance.Source, name string, options Options) (_ Copied, err error) {
	opened, err := options.openIdle(ctx, name, c.layout, false)
	if err != nil {
		return Copied{}, err
	}
	defer func() { err = errors.Join(err, opened.Backend.Close()) }()
	done, err := c.local.Copy(ctx, source, options.whereIs(name), opened.Backend, c.how.CopyOptions)
	switch {
	case errors.Is(err, maintenance.ErrBehind) && name == "etcd":
		err = fmt.Errorf("%w: write a snapshot for a new etcd with --to etcd-snapshot=FILE, or accept that with --reset-watches", err)
	case errors.Is(err, maintenance.ErrBehind):
		err = fmt.Errorf("%w: --replace begins anew above them", err)
	case errors.Is(err, maintenance.ErrNotEmpty):
		err = fmt.Errorf("%w; nothing was changed: --overwrite takes the source's objects, and leaves others there", err)
	}
	return Copied{Storage: name, Copied: done}, err
}

func (o *Options) whereIs(name string) string {
	other := *o
	other.Storage = name
	return other.where()
}

// snapshot writes a snapshot for etcd.
func (c *copier) snapshot(ctx context.Context, source maintenance.Source) (_ Copied, err error) {
	file := c.how.EtcdSnapshot
	if _, err := os.Lstat(file); err == nil {
		return Copied{}, fmt.Errorf("%s %w", file, maintenance.ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Copied{}, err
	}
	base, err := maintenance.Above(source.Revision, 0, c.how.Bump)
	if err != nil {
		return Copied{}, err
	}
	temporary := file + ".unfinished"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Copied{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	count := int64(0)
	values := c.local.Recoded(ctx, source.Values(ctx), func(key string) value.DefaultContext {
		count++
		return etcd.ValueContext(c.how.EtcdPrefix, key)
	})
	last, err := etcd.WriteSnapshot(ctx, temporary, c.how.EtcdPrefix, base, values)
	if err != nil {
		return Copied{}, err
	}
	if err := maintenance.Place(temporary, file); err != nil {
		return Copied{}, err
	}
	return Copied{Storage: "etcd-snapshot", Copied: maintenance.Copied{Objects: count, Written: count, Revision: last}}, nil
}
