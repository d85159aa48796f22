package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// Recover implements journal.Recoverer. It opens the directory as the next process would: that reads the log of the
// failed database and syncs its content into new files.
//
// Meanwhile the failed database is only read. It cannot write, because its disk has failed and the operations in
// progress have ended.
func (j *Journal) Recover() (journal.Journal, error) {
	next, err := j.reopen()
	if err != nil {
		if !errors.Is(err, journal.ErrTransient) {
			j.disk.failLastingly(err)
		}
		return nil, fmt.Errorf("recover journal %s: %w", j.dir, err)
	}
	return next, nil
}

func (j *Journal) reopen() (*Journal, error) {
	if j.closed.Load() {
		return nil, journal.ErrClosed
	}
	j.disk.quiesce()
	switch failure := j.disk.error(); {
	case failure == nil:
		return nil, errors.New("it has not failed")
	case !errors.Is(failure, journal.ErrTransient):
		return nil, failure
	}
	if err := j.verify(); err != nil {
		return nil, err
	}
	before, err := j.listing()
	if err != nil {
		return nil, journal.Refused(err)
	}
	if err := j.probe(before); err != nil {
		return nil, journal.Refused(err)
	}
	next, err := j.open()
	if err != nil && errors.Is(err, journal.ErrTransient) {
		j.sweep(before)
	}
	return next, err
}

// listing is the content of a directory before it is opened.
type listing struct {
	names    []string
	manifest string // the current one
}

func (p *dirLock) listing() (listing, error) {
	names, err := p.files.List(p.dir)
	if err != nil {
		return listing{}, err
	}
	desc, err := pebble.Peek(p.dir, p.files)
	if err != nil {
		return listing{}, err
	}
	return listing{names: names, manifest: desc.ManifestFilename}, nil
}

// sweep removes the files of a failed opening. The next opening would do so only if it found room beside them.
//
// New files are in use only if the MANIFEST is new, too.
func (p *dirLock) sweep(before listing) {
	after, err := p.listing()
	if err != nil || after.manifest != before.manifest {
		return
	}
	for _, name := range after.names {
		if !slices.Contains(before.names, name) && name != watermarkFile {
			// A file that stays only takes up space.
			_ = p.files.Remove(p.files.PathJoin(p.dir, name))
		}
	}
}

const (
	// probeFile is written to find out whether there is room.
	probeFile = "PROBE"
	// probeRoom is the free space in bytes that opening needs, beside room for the newest log, which is always
	// written out again.
	probeRoom int64 = 1 << 20
	// probeHandles is the number of files that must be openable; opening takes fewer.
	probeHandles = 32
)

// probe checks whether an attempt to open the journal can succeed. An attempt is expensive: it reads the whole log.
func (p *dirLock) probe(l listing) (err error) {
	path := p.files.PathJoin(p.dir, probeFile)
	defer func() {
		if removing := p.files.Remove(path); err == nil {
			err = removing
		}
	}()
	room := probeRoom + p.newestLog(l)
	if usage, err := p.files.GetDiskUsage(p.dir); err == nil && int64(usage.AvailBytes) < room {
		return fmt.Errorf("%d bytes are free, %d are needed: %w", usage.AvailBytes, room, syscall.ENOSPC)
	}
	file, err := p.files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for range probeHandles {
		handle, err := p.files.Open(path)
		if err != nil {
			return err
		}
		defer handle.Close()
	}
	// The free space does not reflect a quota. Zeroes may take no space.
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(rand.Uint32())
	}
	for ; room > 0; room -= int64(len(chunk)) {
		// The file may change its argument.
		if _, err := file.Write(slices.Clone(chunk[:min(room, int64(len(chunk)))])); err != nil {
			return err
		}
	}
	return nil
}

// newestLog returns the size of the newest log, 0 if there is none.
func (p *dirLock) newestLog(l listing) int64 {
	var newest string
	for _, name := range l.names {
		if strings.HasSuffix(name, ".log") {
			newest = max(newest, name)
		}
	}
	info, err := p.files.Stat(p.files.PathJoin(p.dir, newest))
	if newest == "" || err != nil {
		return 0
	}
	return info.Size()
}
