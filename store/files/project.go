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
	// debounce is how long a file waits for more changes of its object before it is
	// written.
	debounce = 20 * time.Millisecond
	// batchLimit is how many files are written between two syncs of their notes.
	batchLimit = 512
	// saveDelay is how long notes wait for others that are saved together.
	saveDelay = 500 * time.Millisecond
	// Files that cannot be written are tried again after so long, and then after twice
	// as long each time.
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 10 * time.Second
	// flushTime is how long the last files may take when Run ends.
	flushTime = 5 * time.Second
)

// operation brings one object file in line with the newest record.
type operation struct {
	entry    *entry
	revision uint64
	deleted  bool

	was  known // what is known of the file now
	now  known // what will be if it works
	what what
	// replaces is the hash of the file that goes, zero if there is none.
	replaces digest
	temp     string
	stamp    stamp  // of the file that comes
	base     []byte // what a file said before it was touched
	err      error
}

type what int

const (
	keep    what = iota // the file is as it should be
	write               // the temporary file gets its place
	remove              // the file goes
	examine             // a person has touched it, and what that means comes first
)

// plan finds out what is to be done, and writes the temporary file. It changes nothing
// else.
func (j *Journal) plan(o *operation) error {
	shown, err := j.shown(o)
	if err != nil {
		return err
	}
	o.now = known{revision: o.revision}
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

// shown is what people see of the object, nil if there is none or people cannot read it.
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

// errOvertaken says that there is a newer record, which follows.
var errOvertaken = errors.New("the record has been superseded")

// carryOut does what operations have planned: their notes first, then the files.
func (j *Journal) carryOut(batch []*operation, notes []embedded.Note) error {
	for _, o := range batch {
		if o.err != nil {
			continue
		}
		// From here until it has happened, the file may be either.
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

// discard removes a temporary file, if it is there.
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

// base is what the file of an entry said when it was known last, as a JSON document; nil
// if that cannot be told any more.
func (j *Journal) base(e *entry, k known) []byte {
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

// project writes the object files that are due, at most batchLimit. It tells whether it
// has got any further.
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
		// It is not one file that cannot be written, but the disk.
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

// due takes what is to be written now.
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

// projectSoon has files written that have become dirty.
func (w *watcher) projectSoon() {
	at := time.Now().Add(debounce)
	if at.Before(w.pause) {
		at = w.pause
	}
	if w.projectAt.IsZero() || at.Before(w.projectAt) {
		w.projectAt = at
	}
}

// nextProjection is when one is due again, zero for not. What is being decided on comes
// back by itself.
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

// finish takes over what has become of an operation, and tells whether it was any use.
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

// save makes notes durable that only say what has happened.
func (w *watcher) save() {
	w.saveAt = time.Time{}
	if len(w.unsaved) > 0 && w.journal.records.Load().SetNotes(w.unsaved) == nil {
		w.unsaved = nil
	}
}

// flush writes what is left when Run ends.
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

// reportOverdue logs when files cannot be written any more, and when they can be again.
func (j *Journal) reportOverdue() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if late := len(j.overdue) > 0; late != j.late {
		j.late = late
		if !late {
			j.logger.Info("files: all files are written again", "dir", j.root)
			return
		}
		for e, reason := range j.overdue {
			j.logger.Error(
				"files: a file cannot be written, it follows when that works",
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
