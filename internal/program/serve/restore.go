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

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// CopyOptions are the options of a copy into storages.
type CopyOptions struct {
	// Bump is added to the highest revision that clients may know. It does not apply to a running etcd.
	Bump uint64
	// SnapshotFile is a file to create for the tools of the storage SnapshotOf, instead of writing into a storage.
	SnapshotFile string
	SnapshotOf   store.SnapshotWriter
	// Replace moves an existing storage aside.
	Replace bool
	maintenance.CopyOptions
}

// Copied is the result for one storage.
type Copied struct {
	Storage string `json:"storage"`
	maintenance.Copied
	// Skipped is set for a storage in memory, into which nothing can be restored.
	Skipped bool `json:"skipped,omitempty"`
}

// Restore copies the objects of a backup into the storages of a plan. It reads the backup to its end before it
// changes anything. No server may use the data directory meanwhile.
func Restore(ctx context.Context, p *plan.Plan, file string, how CopyOptions) (maintenance.Contents, []Copied, error) {
	contents, err := checkFile(file)
	if err != nil {
		return contents, nil, err
	}
	durable := slices.DeleteFunc(slices.Clone(p.Storages), func(s *plan.Storage) bool { return s.Traits().Ephemeral })
	if len(durable) == 0 && how.SnapshotOf == nil {
		return contents, nil, errors.New("cannot restore to the storage memory, which exists only while its server runs")
	}
	c, err := newCopier(ctx, p, how)
	if err != nil {
		return contents, nil, err
	}
	defer c.close()
	source := maintenance.Source{Name: "the backup", Values: fileValues(file)}
	for _, s := range contents.Storages {
		source.Revision = max(source.Revision, s.Revision)
	}
	if how.SnapshotOf != nil {
		done, err := c.snapshot(ctx, source)
		return contents, []Copied{done}, err
	}

	check := checkDataDir
	if how.Replace {
		check = checkServerOf
	}
	if err := check(p); err != nil {
		return contents, nil, err
	}
	if err := c.lock(ctx, p, slices.ContainsFunc(durable, inDirectory)); err != nil {
		return contents, nil, err
	}
	for _, s := range durable {
		if err := c.mayFill(s); err != nil {
			return contents, nil, err
		}
	}
	var all []Copied
	for _, s := range p.Storages {
		if s.Traits().Ephemeral {
			all = append(all, Copied{Storage: s.Name(), Skipped: true})
			continue
		}
		part := source
		part.Values = func(ctx context.Context) iter.Seq2[store.Value, error] {
			return c.local.In(s.Name(), source.Values(ctx))
		}
		var done Copied
		if inDirectory(s) {
			done, err = c.intoDirectory(ctx, part, s)
		} else {
			done, err = c.intoOpen(ctx, part, s)
		}
		if err != nil {
			return contents, all, err
		}
		all = append(all, done)
	}
	return contents, all, recordDataDir(p)
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

// fileValues returns the values in a backup file.
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

// Migrate copies all objects of one storage to another. Both plans are plans of Everything, whose options name the
// storages. The source's server must be stopped. The source is not changed.
func Migrate(ctx context.Context, from, to *plan.Plan, how CopyOptions) (_ Copied, err error) {
	for i, side := range []*plan.Plan{from, to} {
		d := side.Options.Storage
		if d.Traits().Ephemeral {
			return Copied{}, fmt.Errorf("cannot migrate from or to the storage %s, which exists only while its server runs", d.Name())
		}
		if i == 0 || how.SnapshotOf == nil {
			if err := d.Validate(side.Options.DataDir); err != nil {
				return Copied{}, err
			}
		}
	}
	source, into := from.Storages[0], to.Storages[0]
	if how.SnapshotOf == nil && source.Name() == into.Name() && filepath.Clean(source.Where()) == filepath.Clean(into.Where()) {
		return Copied{}, errors.New("the source and the target storage are the same")
	}
	c, err := newCopier(ctx, to, how)
	if err != nil {
		return Copied{}, err
	}
	defer c.close()
	if err := checkServerOf(from); err != nil {
		return Copied{}, err
	}
	if err := c.lock(ctx, from, false); err != nil {
		return Copied{}, err
	}
	opened, err := openIdle(ctx, from, source, false)
	if err != nil {
		return Copied{}, err
	}
	defer func() { err = errors.Join(err, opened.Backend.Close()) }()
	snapshot, err := opened.Backend.Snapshot(ctx)
	if err != nil {
		return Copied{}, err
	}
	defer snapshot.Close()
	values := maintenance.Source{Name: where(source), Revision: snapshot.Revision(), Values: snapshot.Values}
	if how.SnapshotOf != nil {
		done, err := c.snapshot(ctx, values)
		if err != nil {
			return done, err
		}
		return done, recordCopy(from, how.SnapshotOf.Name())
	}

	if err := checkTarget(from, to, how.Replace); err != nil {
		return Copied{}, err
	}
	if err := c.lock(ctx, to, inDirectory(into)); err != nil {
		return Copied{}, err
	}
	done, err := c.into(ctx, values, into)
	if err != nil {
		return done, err
	}
	return done, recordDataDir(to)
}

// checkTarget rejects the data directory of another server, and a directory with the objects of another storage
// than the source.
func checkTarget(from, to *plan.Plan, replace bool) error {
	found, err := findRecord(to)
	if err != nil {
		return err
	}
	if err := checkServer(to, found); err != nil || replace || found.Storage == from.Options.Storage.Name() {
		return err
	}
	return checkStorage(to, found)
}

// into copies objects to a storage, which may hold objects already.
func (c *copier) into(ctx context.Context, values maintenance.Source, into *plan.Storage) (Copied, error) {
	if !inDirectory(into) {
		return c.intoOpen(ctx, values, into)
	}
	if err := maintenance.FinishRestore(into.Where()); err != nil {
		return Copied{}, err
	}
	empty, err := maintenance.IsEmpty(into.Where())
	if err != nil {
		return Copied{}, err
	}
	if empty || c.how.Replace {
		return c.intoDirectory(ctx, values, into)
	}
	return c.intoOpen(ctx, values, into)
}

// where describes a storage and its location for messages.
func where(s *plan.Storage) string {
	if inDirectory(s) {
		return s.Name() + " in " + s.Where()
	}
	return s.Name()
}

// copier copies objects into the storages of a plan.
type copier struct {
	plan   *plan.Plan
	local  *maintenance.Local
	keys   *encryption.Encryption
	how    CopyOptions
	locks  []io.Closer
	locked []string // their directories
}

func newCopier(ctx context.Context, p *plan.Plan, how CopyOptions) (_ *copier, err error) {
	keys, err := encryption.Open(ctx, encryption.Options{File: p.Options.EncryptionConfigFile, Server: p.Definition.Name})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			keys.Close()
		}
	}()
	encoded := p
	if how.SnapshotOf != nil {
		options := p.Options
		options.Storage = how.SnapshotOf
		if encoded, err = plan.Everything(p.Definition, options); err != nil {
			return nil, err
		}
	}
	local, err := newLocal(encoded, keys)
	if err != nil {
		return nil, err
	}
	return &copier{plan: p, local: local, keys: keys, how: how}, nil
}

func (c *copier) close() {
	for _, lock := range c.locks {
		_ = lock.Close() // nothing has been written
	}
	c.keys.Close()
}

// lock locks a data directory against servers. If it does not exist, lock creates it, or does nothing without
// create.
func (c *copier) lock(ctx context.Context, p *plan.Plan, create bool) error {
	dir := p.Options.DataDir
	if dir == "" || slices.Contains(c.locked, filepath.Clean(dir)) {
		return nil
	}
	if create {
		if err := prepareDataDir(ctx, p); err != nil {
			return err
		}
	}
	lock, err := lockExisting(dir)
	if errors.Is(err, journal.ErrLocked) {
		return fmt.Errorf("%w: stop the server first", err)
	}
	if err != nil {
		return err
	}
	c.locks, c.locked = append(c.locks, lock), append(c.locked, filepath.Clean(dir))
	return nil
}

// mayFill rejects a directory that is not empty, unless it may be replaced. It also fails if the directory cannot
// be prepared. It runs for all storages before any of them is changed.
func (c *copier) mayFill(s *plan.Storage) error {
	if !inDirectory(s) {
		return nil
	}
	if err := maintenance.FinishRestore(s.Where()); err != nil {
		return err
	}
	empty, err := maintenance.IsEmpty(s.Where())
	if err == nil && !empty && !c.how.Replace {
		err = fmt.Errorf("%s: %w: to move it aside, set CopyOptions.Replace", s.Where(), maintenance.ErrNotEmpty)
	}
	return err
}

func (c *copier) intoDirectory(ctx context.Context, source maintenance.Source, s *plan.Storage) (Copied, error) {
	d, dir := s.Driver.(driver.Directory), s.Where()
	before := uint64(0)
	if empty, err := maintenance.IsEmpty(dir); err != nil {
		return Copied{}, err
	} else if !empty {
		if before, err = d.LastRevision(ctx, dir); err != nil {
			klog.FromContext(ctx).
				Error(err, "The revision of the replaced storage is unknown; using the raised revision of the source", "by", c.how.Bump)
		}
	}
	base, err := maintenance.Above(source.Revision, before, c.how.Bump)
	if err != nil {
		return Copied{}, err
	}
	open := func(dir string) (journal.Journal, error) { return d.OpenIn(ctx, dir, driverEnv(ctx, s, true)) }
	values := c.local.Recoded(ctx, source.Values(ctx), func(key string) value.DefaultContext { return value.DefaultContext(key) })
	done, err := maintenance.FillDirectory(ctx, open, dir, base, values, c.how.Replace)
	return Copied{Storage: s.Name(), Copied: done}, err
}

func (c *copier) intoOpen(ctx context.Context, source maintenance.Source, s *plan.Storage) (_ Copied, err error) {
	opened, err := openIdle(ctx, c.plan, s, false)
	if err != nil {
		return Copied{}, err
	}
	defer func() { err = errors.Join(err, opened.Backend.Close()) }()
	done, err := c.local.Copy(ctx, source, where(s), opened.Backend, c.how.CopyOptions)
	_, snapshots := s.Driver.(store.SnapshotWriter)
	switch {
	case errors.Is(err, maintenance.ErrBehind) && snapshots:
		err = fmt.Errorf(
			"%w: write a snapshot for a new %[2]s with CopyOptions.SnapshotOf %[2]s, or accept lower revisions with CopyOptions.ResetWatches",
			err,
			s.Name(),
		)
	case errors.Is(err, maintenance.ErrBehind):
		err = fmt.Errorf("%w: to start a new storage with higher revisions, set CopyOptions.Replace", err)
	case errors.Is(err, maintenance.ErrNotEmpty):
		err = fmt.Errorf("%w; nothing was changed: to overwrite them with the source's objects and keep all others, set "+
			"CopyOptions.Overwrite", err)
	}
	return Copied{Storage: s.Name(), Copied: done}, err
}

// snapshot writes a snapshot for the tools of a storage.
func (c *copier) snapshot(ctx context.Context, source maintenance.Source) (_ Copied, err error) {
	file := c.how.SnapshotFile
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
		return c.how.SnapshotOf.ValueContext(key)
	})
	last, err := c.how.SnapshotOf.WriteSnapshot(ctx, temporary, base, values)
	if err != nil {
		return Copied{}, err
	}
	if err := maintenance.Place(temporary, file); err != nil {
		return Copied{}, err
	}
	return Copied{
		Storage: c.how.SnapshotOf.Name() + "-snapshot",
		Copied:  maintenance.Copied{Objects: count, Written: count, Revision: last},
	}, nil
}
