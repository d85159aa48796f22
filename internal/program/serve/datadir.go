package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/filelock"
	"github.com/annexapi/annex/internal/program/datadir"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// openDataDir checks, creates and locks the data directory of a plan. It changes nothing if the directory belongs to
// another server or storage. For a plan without a data directory it returns a closer that does nothing.
func openDataDir(ctx context.Context, p *plan.Plan) (io.Closer, error) {
	dir := p.Options.DataDir
	if dir == "" {
		return io.NopCloser(nil), nil
	}
	if err := checkDataDir(p); err != nil {
		return nil, err
	}
	if err := prepareDataDir(ctx, p); err != nil {
		return nil, err
	}
	lock, err := lockDataDir(dir)
	if err != nil {
		return nil, err
	}
	// Another server may have used the directory before it was locked.
	if err := checkDataDir(p); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// prepareDataDir makes the data directory of a plan, private to the user of the process.
func prepareDataDir(ctx context.Context, p *plan.Plan) error {
	var committed []string
	for _, s := range p.Storages {
		if !inDirectory(s) || !s.Traits().TextOnly {
			continue
		}
		path, err := datadir.Relative(p.Options.DataDir, s.Where())
		if err != nil {
			return err
		}
		if !filepath.IsAbs(path) {
			committed = append(committed, path)
		}
	}
	return makePrivate(ctx, p.Options.DataDir, committed...)
}

func makePrivate(ctx context.Context, dir string, committed ...string) error {
	tightened, err := datadir.Prepare(dir, committed...)
	if tightened {
		klog.FromContext(ctx).Info("The data directory was open to other users; changed its mode so that only its owner can "+
			"enter it", "dir", dir)
	}
	return config.Mistake(err)
}

// MakeDataDir creates the data directory of the server with the given name, for files that verbs create before the
// server's first start. It rejects the directory of another server. An empty dir is no directory: nothing happens.
func MakeDataDir(ctx context.Context, dir, server string) error {
	if dir == "" {
		return nil
	}
	found, err := datadir.Read(dir)
	if err != nil {
		return config.Mistake(err)
	}
	if found.Format == 0 {
		found.Server = serverOf(filepath.Join(dir, "kubeconfig"), server)
	}
	if err := checkName(dir, server, found); err != nil {
		return err
	}
	return makePrivate(ctx, dir)
}

// lockDataDir locks a data directory against other servers, even servers with another storage: two servers would
// overwrite each other's certificates and kubeconfig.
func lockDataDir(dir string) (io.Closer, error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, datadir.Explain(dir, err)
	}
	return lock, nil
}

func lockDir(dir string) (io.Closer, error) {
	// Two servers in one process exclude each other by the file's name, so the path must be unique.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	if real, err = filepath.Abs(real); err != nil {
		return nil, err
	}
	lock, err := filelock.Try(filepath.Join(real, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, journal.ErrLocked
	}
	return lock, err
}

// checkDataDir rejects the data directory of another server or of another storage. It changes nothing.
func checkDataDir(p *plan.Plan) error {
	found, err := findRecord(p)
	if err != nil {
		return err
	}
	if err := checkServer(p, found); err != nil {
		return err
	}
	if err := checkStorage(p, found); err != nil {
		return err
	}
	return config.Mistake(errors.Join(checkStorageOf(p, found), checkPlace(p, found)))
}

// checkServerOf rejects the data directory of another server.
func checkServerOf(p *plan.Plan) error {
	found, err := findRecord(p)
	if err != nil {
		return err
	}
	return checkServer(p, found)
}

// findRecord returns the record of a plan's data directory. For a directory of an earlier build it derives the
// record from the contents.
func findRecord(p *plan.Plan) (datadir.Record, error) {
	found, err := datadir.Read(p.Options.DataDir)
	if err != nil || found.Format > 0 || p.Options.DataDir == "" {
		return found, config.Mistake(err)
	}
	found.Server = serverOf(filepath.Join(p.Options.DataDir, "kubeconfig"), p.Definition.Name)
	for _, s := range datadir.Unrecorded(p.Options.DataDir) {
		if empty, err := maintenance.IsEmpty(s.Path); err != nil || empty {
			continue
		}
		planned := p.Storage(s.Name)
		switch {
		case planned == nil || planned.Where() != s.Path:
			found.Storage = cmp.Or(found.Storage, s.Name)
		case s.Name == p.Options.Storage.Name():
			found.Storage = s.Name
		}
	}
	return found, nil
}

// serverOf returns the name of the server that wrote a kubeconfig; empty if it is unknown.
func serverOf(kubeconfig, name string) string {
	known, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || known.Clusters[name] != nil {
		return ""
	}
	for _, cluster := range slices.Sorted(maps.Keys(known.Clusters)) {
		if known.AuthInfos[cluster+"-admin"] != nil {
			return cluster
		}
	}
	return ""
}

func checkServer(p *plan.Plan, found datadir.Record) error {
	return checkName(p.Options.DataDir, p.Definition.Name, found)
}

func checkName(dir, server string, found datadir.Record) error {
	if found.Server == "" || found.Server == server {
		return nil
	}
	return config.Mistake(fmt.Errorf("data directory %s belongs to the server %s, not to %s: set Options.DataDir to another "+
		"directory", dir, found.Server, server))
}

func checkStorage(p *plan.Plan, found datadir.Record) error {
	storage := p.Options.Storage.Name()
	if found.Storage == "" || found.Ephemeral || slices.Contains([]string{found.Storage, found.CopiedTo}, storage) {
		return nil
	}
	return config.Mistake(fmt.Errorf("data directory %s belongs to a server whose objects are in the storage %s, not in %s: set "+
		"Options.Storage to %[2]s, or Options.DataDir to another directory", p.Options.DataDir, found.Storage, storage))
}

// checkStorageOf rejects another storage for a single resource than the storage that holds its objects.
func checkStorageOf(p *plan.Plan, found datadir.Record) error {
	var errs []error
	for _, resource := range p.Resources {
		storage, other := found.StorageOf[resource.String()]
		if !other || storage == resource.Storage.Name() || isGone(p, found, storage) {
			continue
		}
		errs = append(errs, fmt.Errorf("data directory %s belongs to a server whose objects of %s are in the storage %s, not in %s: add "+
			"Options.StorageOf %[2]s=%[3]s",
			p.Options.DataDir, resource, storage, resource.Storage.Name()))
	}
	return errors.Join(errs...)
}

// isGone reports whether a storage that keeps a directory no longer has it.
func isGone(p *plan.Plan, found datadir.Record, storage string) bool {
	at := found.Directory(p.Options.DataDir, storage)
	if at == "" {
		return false
	}
	empty, err := maintenance.IsEmpty(at)
	return err == nil && empty
}

// checkPlace rejects a new directory for a storage whose objects are in another directory.
func checkPlace(p *plan.Plan, found datadir.Record) error {
	var errs []error
	for _, s := range p.Storages {
		at := found.Directory(p.Options.DataDir, s.Name())
		d, ok := s.Driver.(driver.Directory)
		if at == "" || !ok || d.Present(at) != nil || !errors.Is(d.Present(s.Where()), fs.ErrNotExist) {
			continue
		}
		errs = append(errs, fmt.Errorf("data directory %s belongs to a server whose storage %s is in %s, but %s has no such storage: set "+
			"Options.Drivers %[2]s to %[3]s", p.Options.DataDir, s.Name(), at, s.Where()))
	}
	return errors.Join(errs...)
}

// recordDataDir durably records the server and the storages of the data directory. Without a data directory it
// writes nothing.
func recordDataDir(p *plan.Plan) error {
	dir := p.Options.DataDir
	if _, err := os.Stat(dir); dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := datadir.Read(dir)
	if err != nil {
		return err
	}
	r.CreatedBy = cmp.Or(r.CreatedBy, upstream.EffectiveVersion(p.Definition).Info().GitVersion)
	r.Server, r.Storage, r.Ephemeral, r.CopiedTo = p.Definition.Name, p.Options.Storage.Name(), p.Options.Storage.Traits().Ephemeral, ""
	of := maps.Clone(r.StorageOf)
	if of == nil {
		of = map[string]string{}
	}
	directories := map[string]string{}
	for _, resource := range p.Resources {
		delete(of, resource.String())
		if s := resource.Storage; s.Name() != r.Storage && !s.Traits().Ephemeral {
			of[resource.String()] = s.Name()
		}
	}
	for storage, path := range r.Directories {
		if slices.Contains(slices.Collect(maps.Values(of)), storage) {
			directories[storage] = path
		}
	}
	for _, s := range p.Storages {
		if inDirectory(s) {
			if directories[s.Name()], err = datadir.Relative(dir, s.Where()); err != nil {
				return err
			}
		}
	}
	r.StorageOf, r.Directories = of, directories
	return r.Write(dir)
}

// recordCopy durably records that the next start may use another storage, which has the same objects.
func recordCopy(p *plan.Plan, storage string) error {
	if err := recordDataDir(p); err != nil {
		return err
	}
	r, err := datadir.Read(p.Options.DataDir)
	if err != nil || r.Format == 0 {
		return err
	}
	r.CopiedTo = storage
	return r.Write(p.Options.DataDir)
}
