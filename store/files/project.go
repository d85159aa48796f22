package files

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

const (
	// debounce is the time that a file waits for more changes of its object before it is written.
	debounce = 20 * time.Millisecond
	// batchLimit is the number of files written between two syncs of their notes.
	batchLimit = 512
	// saveDelay is the time that notes wait for others, to be saved together.
	saveDelay = 500 * time.Millisecond
	// A failed file is tried again after firstBackoff, which doubles each time up to lastBackoff.
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 10 * time.Second
	// flushTime is the time for the last files when Run ends.
	flushTime = 5 * time.Second
)

// operation brings one object file in line with the newest record.
type operation struct {
	entry    *entry
	revision uint64
	deleted  bool

	was  fileState // the known state of the file before
	now  fileState // the known state after success
	what action
	// replaces is the hash of the file to be replaced or removed, zero if there is none.
	replaces digest
	temp     string
	stamp    stamp  // of the new file
	base     []byte // the content of the file before a person touched it
	err      error
}

type action int

const (
	keep    action = iota // the file is up to date
	write                 // the temporary file takes its place
	remove                // the file is removed
	examine               // a person has touched it, and the edit is decided first
)

// plan determines the operation, and writes the temporary file. It changes nothing else.
func (j *Journal) plan(o *operation) error {
	shown, err := j.shown(o)
	if err != nil {
		return err
	}
	o.now = fileState{revision: o.revision}
	var says []byte
	if shown != nil {
		if says, err = encodeYAML(shown); err != nil {
			return err
		}
		o.now.says = digestOf(says)
		if o.now.says == o.was.says && o.was.file != (digest{}) && o.was.next == (digest{}) {
			o.now, o.stamp = o.was, o.entry.stamp
			o.now.revision = o.revision
			return nil
		}
	}
	there, err := j.load(o.entry.name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if o.was.file != (digest{}) && shown != nil {
			o.what = examine
			return nil
		}
	case err == nil && o.was.has(there.hash):
		o.replaces = there.hash
	case err == nil || obstructed(err):
		o.what, o.base = examine, j.base(o.entry, o.was)
		return nil
	default:
		return err
	}
	if shown == nil {
		if o.replaces != (digest{}) {
			o.what = remove
		}
		return nil
	}
	text := says
	if there.data != nil {
		text = mergeYAML(there.data, shown, says)
	}
	if o.now.file = digestOf(text); o.now.file == there.hash {
		o.stamp = there.stamp
		return nil
	}
	o.what, o.temp = write, tempName(o.entry.name(), unfinished)
	info, err := j.write(o.temp, text)
	if errors.Is(err, fs.ErrNotExist) {
		// A person has removed the directory.
		j.dirs.forget()
		if err = j.mkdir(tempDir); err == nil {
			info, err = j.write(o.temp, text)
		}
	}
	if err != nil {
		return errors.Join(err, j.discard(o.temp))
	}
	o.stamp = stampOf(info)
	return nil
}

// shown returns the visible part of the object, nil if there is no object or people cannot read it.
func (j *Journal) shown(o *operation) ([]member, error) {
	if o.deleted {
		return nil, nil
	}
	record, err := j.Read(o.revision)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, errOvertaken
	}
	if err != nil {
		return nil, err
	}
	shown, _, ok := visible(record.Value, o.entry.place.resource.Status)
	if !ok {
		return nil, nil
	}
	return shown, nil
}

// errOvertaken means that a newer record exists, whose file follows.
var errOvertaken = errors.New("the record has been superseded")

// carryOut performs planned operations: their notes first, then the files.
func (j *Journal) carryOut(batch []*operation, notes []embedded.Note) error {
	for _, o := range batch {
		if o.err != nil {
			continue
		}
		// From here until the operation is done, the file may be in either state.
		switch o.what {
		case write:
			o.was.file, o.was.next = o.replaces, o.now.file
		case remove:
			o.was.file, o.was.next = digest{}, o.replaces
		default:
			continue
		}
		o.was.says = digest{}
		notes = append(notes, o.entry.note(o.was))
	}
	if len(notes) > 0 {
		if err := j.records.Load().SetNotes(notes); err != nil {
			for _, o := range batch {
				if o.err == nil && (o.what == write || o.what == remove) {
					o.was, o.err = o.entry.known, errors.Join(err, j.discard(o.temp))
				}
			}
			return err
		}
	}
	_ = parallel(len(batch), func(i int) error {
		o := batch[i]
		if o.err != nil {
			return nil
		}
		switch o.what {
		case write:
			o.err = j.install(o.temp, o.entry.name(), o.replaces, o.now.file)
		case remove:
			o.err = j.takeAway(o.entry.name(), o.replaces)
		}
		if errors.Is(o.err, errTouched) || o.err != nil && obstructed(o.err) {
			o.what, o.base, o.err = examine, j.base(o.entry, o.was), j.discard(o.temp)
		}
		return nil
	})
	j.syncDirs(batch)
	return nil
}

// discard removes a temporary file, if it exists.
func (j *Journal) discard(temp string) error {
	if temp == "" {
		return nil
	}
	if err := j.files.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDirs makes the names of files durable.
func (j *Journal) syncDirs(batch []*operation) {
	changed := map[string][]*operation{}
	for _, o := range batch {
		if o.err == nil && (o.what == write || o.what == remove) {
			dir := path.Dir(o.entry.name())
			changed[dir] = append(changed[dir], o)
		}
	}
	dirs := slices.Collect(maps.Keys(changed))
	_ = parallel(len(dirs), func(i int) error {
		if err := j.files.SyncDir(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			for _, o := range changed[dirs[i]] {
				o.err = err
			}
		}
		return nil
	})
}

// base returns the last known content of an entry's file, as a JSON document; nil if it can no longer be determined.
func (j *Journal) base(e *entry, k fileState) []byte {
	if k.written {
		if document, err := j.records.Load().Note(documentNotes + e.key); err == nil && document != nil {
			return document
		}
	}
	if e.base != nil || k.revision == 0 {
		return e.base
	}
	record, err := j.Read(k.revision)
	if err != nil || record.Deleted {
		return nil
	}
	shown, _, ok := visible(record.Value, e.place.resource.Status)
	if !ok {
		return nil
	}
	return jsonObject(shown)
}

// project writes the due object files, at most batchLimit. It reports whether it has made progress.
func (w *watcher) project(now time.Time) bool {
	j := w.journal
	if !j.isHere() {
		w.projectAt = now.Add(lastBackoff)
		return false
	}
	batch := w.due(now)
	if len(batch) == 0 {
		w.projectAt = w.nextProjection()
		return false
	}
	_ = parallel(len(batch), func(i int) error {
		batch[i].err = j.plan(batch[i])
		return nil
	})
	if err := j.carryOut(batch, w.unsaved); err == nil {
		w.unsaved = nil
	}
	further := false
	for _, o := range batch {
		if w.finish(o) {
			further = true
		}
	}
	j.reportOverdue()
	if w.failures++; further {
		w.failures, w.pause = 0, time.Time{}
	} else {
		// The disk is at fault, not a single file.
		w.pause = time.Now().Add(backoff(w.failures))
	}
	w.projectAt = w.nextProjection()
	if len(w.unsaved) > 0 && w.saveAt.IsZero() {
		w.saveAt = time.Now().Add(saveDelay)
	}
	return further
}

func backoff(failures int) time.Duration {
	return min(firstBackoff<<min(max(failures-1, 0), 10), lastBackoff)
}

// due removes the due entries from pending and returns their operations.
func (w *watcher) due(now time.Time) (batch []*operation) {
	j := w.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	for e := range j.dirty {
		if _, waits := w.pending[e]; !waits {
			w.pending[e] = now
		}
	}
	clear(j.dirty)
	for e, at := range w.pending {
		if len(batch) == batchLimit {
			break
		}
		if !at.After(now) && w.busy[e.name()] == nil {
			delete(w.pending, e)
			batch = append(batch, &operation{entry: e, revision: e.newest, deleted: !e.exists(), was: e.known})
		}
	}
	return batch
}

// projectSoon schedules the writing of dirty files.
func (w *watcher) projectSoon() {
	at := time.Now().Add(debounce)
	if at.Before(w.pause) {
		at = w.pause
	}
	if w.projectAt.IsZero() || at.Before(w.projectAt) {
		w.projectAt = at
	}
}

// nextProjection returns the time of the next projection, zero if there is none. Files with a decision in progress
// are scheduled again by its result.
func (w *watcher) nextProjection() time.Time {
	next := time.Time{}
	for e, at := range w.pending {
		if w.busy[e.name()] == nil && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if !next.IsZero() && next.Before(w.pause) {
		next = w.pause
	}
	return next
}

// finish processes the result of an operation, and reports whether it made progress.
func (w *watcher) finish(o *operation) bool {
	j, e := w.journal, o.entry
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(o.err, errOvertaken) {
		if e.newest == o.revision {
			j.overdue[e] = o.err.Error()
		}
		return true
	}
	if o.err != nil {
		e.known = o.was
		e.tries++
		j.overdue[e] = oneLine(o.err)
		w.pending[e] = time.Now().Add(backoff(e.tries))
		return false
	}
	delete(j.overdue, e)
	e.tries = 0
	if o.what == examine {
		e.known = o.was
		if e.base == nil {
			e.base = o.base
		}
		if w.looks[e.name()] == nil {
			w.lookSoon(e.name(), quiet)
		}
		return true
	}
	changed := o.now.file != o.was.file || o.was.next != (digest{}) || o.now.says != o.was.says || o.was.revision == 0
	if changed && o.was.written {
		w.unsaved = append(w.unsaved, embedded.Note{Name: documentNotes + e.key})
	}
	e.known, e.stamp, e.base = o.now, o.stamp, nil
	switch {
	case o.now.file == (digest{}):
		if o.was.file != (digest{}) || o.was.next != (digest{}) {
			w.unsaved = append(w.unsaved, embedded.Note{Name: knownNotes + e.key})
		}
		if e.newest == o.revision && o.deleted {
			j.forget(e)
		}
	case changed:
		w.unsaved = append(w.unsaved, e.note(e.known))
	}
	return true
}

// save makes the notes durable that only record past events.
func (w *watcher) save() {
	w.saveAt = time.Time{}
	if len(w.unsaved) > 0 && w.journal.records.Load().SetNotes(w.unsaved) == nil {
		w.unsaved = nil
	}
}

// flush writes the remaining files when Run ends.
func (w *watcher) flush() {
	deadline := time.Now().Add(flushTime)
	for now := time.Now(); now.Before(deadline); now = time.Now() {
		for e := range w.pending {
			w.pending[e] = now
		}
		if !w.project(now) {
			break
		}
	}
	w.save()
}

// Overdue implements driver.Edited: it returns the files that could not be written yet.
func (j *Journal) Overdue() []driver.Problem {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]driver.Problem, 0, len(j.overdue))
	for e, reason := range j.overdue {
		list = append(list, driver.Problem{Path: j.path(e.name()), Reason: reason})
	}
	return sorted(list)
}

// reportOverdue logs when files can no longer be written, and when they can be written again.
func (j *Journal) reportOverdue() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if late := len(j.overdue) > 0; late != j.late {
		j.late = late
		if !late {
			j.logger.Info("files: writing all files again", "dir", j.root)
			return
		}
		for e, reason := range j.overdue {
			j.logger.Error(
				"files: cannot write a file, trying again later",
				"file",
				j.path(e.name()),
				"err",
				errors.New(reason),
				"files",
				len(j.overdue),
			)
			break
		}
	}
}
