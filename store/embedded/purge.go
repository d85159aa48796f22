package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

var _ journal.Purger = (*Journal)(nil)

// purgePoll is the interval at which a purge checks whether it can go on or has to give up.
const purgePoll = 20 * time.Millisecond

// Purge implements journal.Purger. It rewrites all kept records without the dropped ones, and waits for the removal
// of the old files.
func (j *Journal) Purge(ctx context.Context) error {
	if err := j.purge(ctx); err != nil {
		return fmt.Errorf("purge journal %s: %w", j.dir, err)
	}
	return nil
}

func (j *Journal) purge(ctx context.Context) error {
	if err := j.failed(); err != nil {
		return err
	}
	j.disk.purges.Add(1)
	defer j.disk.purges.Add(-1)
	// The content of these logs is in tables once the flush has ended.
	logs, err := j.namesWith(".log")
	if err != nil {
		return err
	}
	if err := j.db.Flush(); err != nil {
		return describe(err)
	}
	if err := j.compact(ctx); err != nil {
		return err
	}
	if err := j.disk.empty(logs); err != nil {
		return err
	}
	return j.awaitRemoval(ctx)
}

// compact compacts all records and notes. It does not wait for a compaction of a failed disk, which ends only when
// the journal is closed.
func (j *Journal) compact(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- j.db.Compact(ctx, recordPrefix, noteLimit, false) }()
	tick := time.NewTicker(purgePoll)
	defer tick.Stop()
	var failure error
	for {
		select {
		case err := <-done:
			return errors.Join(failure, describe(err))
		case <-tick.C:
			if failure == nil {
				if failure = j.failed(); failure != nil {
					cancel()
				}
			}
		}
	}
}

// awaitRemoval waits for the removal of the tables that are obsolete now.
func (j *Journal) awaitRemoval(ctx context.Context) error {
	tables, err := j.namesWith(".sst")
	if err != nil {
		return err
	}
	tick := time.NewTicker(purgePoll)
	defer tick.Stop()
	for {
		if err := j.failed(); err != nil {
			return err
		}
		used, err := j.tablesInUse()
		if err != nil {
			return err
		}
		left := 0
		for _, name := range tables {
			if _, err := j.files.Stat(j.files.PathJoin(j.dir, name)); used[name] || errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			left++
		}
		if left == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d unused files could not be removed: %w", left, ctx.Err())
		}
	}
}

// tablesInUse returns the names of the tables that the database consists of.
func (j *Journal) tablesInUse() (map[string]bool, error) {
	levels, err := j.db.SSTables()
	if err != nil {
		return nil, describe(err)
	}
	used := map[string]bool{}
	for _, level := range levels {
		for _, table := range level {
			used[fmt.Sprintf("%06d.sst", uint64(table.BackingSSTNum))] = true
		}
	}
	return used, nil
}

func (j *Journal) namesWith(extension string) ([]string, error) {
	names, err := j.files.List(j.dir)
	if err != nil {
		return nil, err
	}
	var some []string
	for _, name := range names {
		if strings.HasSuffix(name, extension) {
			some = append(some, filepath.Base(name))
		}
	}
	return some, nil
}

// empty truncates logs whose records are in tables. Pebble keeps such logs, with their content, for reuse.
func (d *disk) empty(logs []string) error {
	// Meanwhile no log is renamed for reuse, or removed.
	d.using.Lock()
	defer d.using.Unlock()
	if err := d.error(); err != nil {
		return err
	}
	if err := d.verify(); err != nil {
		return err
	}
	for _, name := range logs {
		path := d.FS.PathJoin(d.dir, name)
		if _, err := d.FS.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		file, err := d.FS.Create(path, vfs.WriteCategoryUnspecified)
		if err == nil {
			err = errors.Join(file.Sync(), file.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
