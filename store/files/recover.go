package files

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"

	"github.com/annexapi/annex/store/journal"
)

// Recover implements journal.Recoverer: it returns the journal itself. The history is
// in its memory alone, and whoever looks after the edits of people holds on to it.
//
// What a failed commit has left behind is what a kill would have left: side files, one
// after the other, up to the first that could not be moved into place, and object files
// that may or may not have been written. The side files say which records there are,
// and once their directories are synced, those are durable; the others have never
// happened. Everything else is put right as when a journal is opened.
func (j *Journal) Recover() (journal.Journal, error) {
	o := &operation{run: j.recover, heals: true, done: make(chan struct{})}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil, journal.ErrClosed
	}
	j.enqueue(o)
	j.mu.Unlock()
	if <-o.done; o.err != nil {
		return nil, fmt.Errorf("recover files %s: %w", j.root, o.err)
	}
	return j, nil
}

// recover is Recover, run by the committer.
func (j *Journal) recover() error {
	j.mu.Lock()
	failure, failed := j.failure, j.failed
	j.mu.Unlock()
	if failure != nil {
		if !errors.Is(failure, journal.ErrTransient) {
			return failure
		}
		if err := j.heal(failed); err != nil {
			if !errors.Is(err, journal.ErrTransient) {
				j.fail(err, nil)
			}
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failure, j.failed = nil, nil
	j.loaded = j.loaded[:0]
	for _, r := range j.records {
		j.loaded = append(j.loaded, r)
	}
	slices.SortFunc(j.loaded, byRevision)
	if failure != nil {
		j.logger.Info("files: records are accepted again", "dir", j.root)
	}
	return nil
}

func byRevision(a, b journal.Record) int { return cmp.Compare(a.Revision, b.Revision) }

// heal puts right what failed operations have left behind. It changes nothing that
// doing it again would not: it may fail itself.
func (j *Journal) heal(failed []*operation) error {
	clear(j.dirs)
	j.dirs["."] = true
	if err := j.probe(failed); err != nil {
		return err
	}
	found, err := j.takeStock(failed)
	if err != nil {
		return err
	}
	unfinished := j.takeOver(found)
	if err := j.clean(unfinished); err != nil {
		return err
	}
	for _, r := range found {
		if at, placed := j.layout.place(r.Key); placed {
			j.look(at.stem + yamlSuffix)
			j.look(at.stem + binarySuffix)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, p := range j.problems {
		if !p.final {
			j.look(name) // it could not be carried out
		}
	}
	return nil
}

const (
	// The probe is so many files, open at once, and so many bytes beside those that
	// could not be written.
	probeFiles = 32
	probeRoom  = 1 << 20
	probeLimit = 8 << 20
)

// probe finds out whether the next commit can hope to succeed. A journal that accepts
// records only to fail with them leaves writers in doubt, where a refusal would not.
func (j *Journal) probe(failed []*operation) (err error) {
	room := probeRoom
	for _, o := range failed {
		room += 2 * len(o.record.Value)
	}
	// Zeroes may take no room.
	chunk := make([]byte, min(room, probeLimit)/probeFiles)
	for i := range chunk {
		chunk[i] = byte(rand.Uint32())
	}
	for n := range probeFiles {
		name := path.Join(tempDir, "probe-"+strconv.Itoa(n))
		file, err := j.files.Create(name)
		if err != nil {
			return err
		}
		defer func() {
			// Nobody relies on what is in it.
			if removing := errors.Join(journal.Refused(file.Close()), j.files.Remove(name)); err == nil {
				err = removing
			}
		}()
		// The file may change the bytes it is given to write.
		if _, err := file.Write(slices.Clone(chunk)); err != nil {
			return err
		}
	}
	return nil
}

// takeStock finds out which of the failed records are there, and makes sure that they
// stay. It returns the side files, as they are now, of all keys whose object file may
// not be what the journal thinks.
func (j *Journal) takeStock(failed []*operation) (found []sideRecord, err error) {
	doubtful := map[string]bool{}
	j.mu.Lock()
	for key, e := range j.entries {
		if e.behind {
			doubtful[key] = true
		}
	}
	j.mu.Unlock()
	dirs := map[string]bool{}
	missing := uint64(0)
	for _, o := range failed {
		if !o.fresh {
			doubtful[o.record.Key] = o.before.key != ""
			continue
		}
		r, exists, err := j.side(o.record.Key)
		switch existed := o.before.key != ""; {
		case err != nil:
			return nil, err
		case exists && r.Revision == o.record.Revision:
			found = append(found, r)
			dirs[path.Dir(sidePath(r.Key))] = true
		case !exists && o.record.Deleted && o.durable:
			// That was the last that was to be done, and the object file is somebody else's
			// if there is one.
			found = append(found, sideRecord{Record: o.record})
		case exists == existed && (!exists || r.Revision == o.before.revision):
			missing = cmp.Or(missing, o.record.Revision)
			continue
		default:
			return nil, journal.Damaged(o.record.Revision, "%s is neither from before it nor of it", j.path(sidePath(o.record.Key)))
		}
		delete(doubtful, o.record.Key)
		if missing != 0 {
			return nil, journal.Damaged(missing, "is missing, though revision %d is there", o.record.Revision)
		}
	}
	for key, so := range doubtful {
		if !so {
			continue
		}
		r, exists, err := j.side(key)
		if err == nil && !exists {
			err = journal.Damaged(0, "%s is gone", j.path(sidePath(key)))
		}
		if err != nil {
			return nil, err
		}
		found = append(found, r)
		dirs[path.Dir(sidePath(key))] = true
	}
	if err := j.syncAll(dirs); err != nil {
		return nil, err
	}
	for _, o := range failed {
		if missing == 0 || o.record.Revision < missing {
			o.durable = true
		}
	}
	return found, nil
}

// side reads the side file of a key, if there is one.
func (j *Journal) side(key string) (r sideRecord, exists bool, err error) {
	name := sidePath(key)
	data, err := j.read(name, 1<<31)
	if errors.Is(err, fs.ErrNotExist) {
		return sideRecord{}, false, nil
	}
	if err != nil {
		return sideRecord{}, false, err
	}
	r, err = j.parseRecord(name, data)
	return r, true, err
}

// takeOver makes what was found what is known. It returns the deletions.
func (j *Journal) takeOver(found []sideRecord) (unfinished []sideRecord) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range found {
		j.committed = max(j.committed, r.Revision)
		e := j.entries[r.Key]
		if r.Deleted {
			unfinished = append(unfinished, r)
			if e != nil {
				j.forget(e)
			}
			continue
		}
		if e == nil {
			e = &entry{key: r.Key}
			e.place, e.placed = j.layout.place(r.Key)
			j.know(e)
		}
		e.revision, e.object, e.stamp = r.Revision, r.object, stamp{}
		e.settled, e.behind, e.touched = !e.placed, false, false
	}
	for ; j.last > j.committed; j.last-- {
		delete(j.records, j.last)
	}
	return unfinished
}
