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

// Recover implements journal.Recoverer: it opens the directory as the next process
// would, which reads the log that the failed database has left and syncs what is
// in it into new files.
//
// The failed database is only read from meanwhile, and cannot write: its disk has
// failed, and whatever was on its way there has ended.
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

// listing is what a directory holds before it is opened.
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

// sweep removes what an opening that failed has left behind, which the next one
// would do only if it found room beside it.
//
// Whatever is new is in use only through a new MANIFEST.
func (p *dirLock) sweep(before listing) {
	after, err := p.listing()
	if err != nil || after.manifest != before.manifest {
		return
	}
	for _, name := range after.names {
		if !slices.Contains(before.names, name) && name != watermarkFile {
			// What stays costs room, no more.
			_ = p.files.Remove(p.files.PathJoin(p.dir, name))
		}
	}
}

const (
	// probeFile is written to learn whether there is room.
	probeFile = "PROBE"
	// probeRoom is what has to be free beside room for the newest log, which is
	// always written out again.
	probeRoom int64 = 1 << 20
	// probeHandles is how many files have to be openable; it takes fewer.
	probeHandles = 32
)

// probe finds out whether it is worth trying to open the journal: each try reads
// the whole log.
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
	// A quota does not show in what is free. Zeroes may take no room.
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(rand.Uint32())
	}
	for ; room > 0; room -= int64(len(chunk)) {
		// The file may change the bytes it is given to write.
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
