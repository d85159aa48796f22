package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
)

const (
	// quiet and patience are the time that an editor has to finish a file: since its last change, and, if it seems to
	// be gone or broken, since it first seemed so.
	quiet    = 50 * time.Millisecond
	patience = 300 * time.Millisecond
	// Looks at files are rounded up to steps of this duration, so that all due files are looked at together.
	step = 10 * time.Millisecond
	// blindRescan is the interval between walks through a tree whose changes are not reported.
	blindRescan = 500 * time.Millisecond

	proposalLimit = 64
)

type problem struct {
	reason string
	stamp  stamp
	// final reports that nothing is tried before the file changes.
	final bool
}

// Problems implements driver.Edited: it returns the files that are not served.
func (j *Journal) Problems() []driver.Problem {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]driver.Problem, 0, len(j.problems))
	for name, p := range j.problems {
		list = append(list, driver.Problem{Path: j.path(name), Reason: p.reason})
	}
	return sorted(list)
}

func sorted(list []driver.Problem) []driver.Problem {
	slices.SortFunc(list, func(a, b driver.Problem) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// Observed implements driver.Edited.
func (j *Journal) Observed() <-chan struct{} { return j.observed }

// Run implements driver.Edited: it writes object files and watches the tree.
func (j *Journal) Run(ctx context.Context, decide driver.Decide) error {
	if !j.replayed.Load() {
		return fmt.Errorf("watch files %s: the records have not been replayed", j.root)
	}
	w := &watcher{
		journal: j,
		decide:  decide,
		looks:   map[string]*scheduledCheck{},
		busy:    map[string]*scheduledCheck{},
		results: make(chan result),
		swept:   make(chan sweep, 1),
		pending: map[*entry]time.Time{},
	}
	j.mu.Lock()
	for _, e := range j.entries {
		if e.known.revision != e.newest || e.known.next != (digest{}) || !e.exists() {
			j.soil(e)
		}
	}
	j.mu.Unlock()
	for i := range j.layout.resources {
		r := &j.layout.resources[i]
		dir := r.dir()
		if !r.Namespaced {
			dir = r.dirOf("")
		}
		// The directory shows people where to write.
		if err := j.mkdir(dir); err != nil && !obstructed(err) {
			j.logger.Warn("files: cannot create a directory", "dir", j.path(dir), "err", err)
		}
	}
	var events chan fsnotify.Event
	var failures chan error
	if j.watched {
		notifier, err := fsnotify.NewWatcher()
		if err != nil {
			j.logger.Warn("files: cannot watch the tree, scanning it periodically instead", "dir", j.root, "err", err)
		} else {
			defer notifier.Close()
			w.notifier, events, failures = notifier, notifier.Events, notifier.Errors
		}
	}
	w.run(ctx, events, failures)
	return nil
}

// watcher is the state of Run. Only Run's goroutine uses it.
type watcher struct {
	journal  *Journal
	decide   driver.Decide
	notifier *fsnotify.Watcher // nil if changes cannot be watched

	pending   map[*entry]time.Time // files to write, and when
	projectAt time.Time            // zero if there is none
	pause     time.Time            // no file is written before
	failures  int                  // failed projections in a row
	unsaved   []embedded.Note
	saveAt    time.Time // zero if there is nothing to save

	looks    map[string]*scheduledCheck // files to look at
	lookNext time.Time                  // when the first is due
	busy     map[string]*scheduledCheck // files whose proposal is being decided
	waiting  []*proposal
	results  chan result
	swept    chan sweep

	sweeping bool
	first    bool // the first sweep has been processed
	initial  int  // its files that are not dealt with yet
	blind    bool // some directory cannot be watched
}

// scheduledCheck is a scheduled look at a file.
type scheduledCheck struct {
	time time.Time
	// seems is a state in which an editor may briefly leave a file, and since is the beginning of that state.
	seems string
	since time.Time
	// tries counts failed proposals.
	tries   int
	initial bool
}

type result struct {
	proposal *proposal
	says     []byte
	err      error
}

func (w *watcher) run(ctx context.Context, events <-chan fsnotify.Event, failures <-chan error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	nextSweep := time.Now()
	for {
		now := time.Now()
		if !w.sweeping && !nextSweep.After(now) {
			w.startSweep(ctx)
		}
		if ctx.Err() == nil {
			w.work(ctx, now)
		}
		timer.Reset(w.untilNext(time.Now(), nextSweep))
		select {
		case <-ctx.Done():
			w.end()
			return
		case <-timer.C:
		case event := <-events:
			w.note(event)
		case err := <-failures:
			if err != nil {
				w.journal.logger.Warn("files: changes may be missing, scanning all files", "dir", w.journal.root, "err", err)
			}
			nextSweep = time.Now()
		case <-w.journal.wake:
			w.projectSoon()
		case r := <-w.results:
			w.take(ctx, r)
		case s := <-w.swept:
			w.sweeping = false
			interval := w.journal.rescan
			if w.notifier == nil || s.unwatched {
				interval = min(interval, blindRescan)
			}
			nextSweep = time.Now().Add(max(interval, 20*s.took))
			w.takeSweep(s)
		}
	}
}

// work does all due work.
func (w *watcher) work(ctx context.Context, now time.Time) {
	if !w.lookNext.IsZero() && !w.lookNext.After(now) {
		w.lookAt(ctx, now)
	}
	if !w.projectAt.IsZero() && !w.projectAt.After(now) {
		w.project(now)
	}
	if !w.saveAt.IsZero() && !w.saveAt.After(now) {
		w.save()
	}
}

// end waits for the decisions in progress, and writes their results.
func (w *watcher) end() {
	for _, p := range w.waiting {
		delete(w.busy, p.name)
	}
	w.waiting = nil
	for len(w.busy) > 0 {
		r := <-w.results
		delete(w.busy, r.proposal.name)
		if r.err == nil {
			w.accept(r.proposal, r.says)
		}
	}
	if w.sweeping {
		<-w.swept
	}
	w.flush()
}

// untilNext returns the time until the next work is due.
func (w *watcher) untilNext(now, nextSweep time.Time) time.Duration {
	next := nextSweep
	if w.sweeping {
		next = now.Add(time.Hour)
	}
	for _, at := range []time.Time{w.lookNext, w.projectAt, w.saveAt} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return max(next.Sub(now), 0)
}

// note processes an event of a file or directory.
func (w *watcher) note(event fsnotify.Event) {
	relative, err := filepath.Rel(w.journal.root, event.Name)
	if err != nil {
		return
	}
	name := filepath.ToSlash(relative)
	if ignored(path.Base(name)) {
		return
	}
	if event.Op == fsnotify.Chmod {
		// Its owner may have made it readable.
		w.lookSoon(name, quiet)
		return
	}
	if event.Op&(fsnotify.Write) != 0 {
		// The stamp may not show the change.
		w.journal.doubt(name)
	}
	if w.isDir(name) && w.journal.layout.resourceAt(path.Dir(name)) == nil {
		w.lookInto(name)
		return
	}
	w.lookSoon(name, quiet)
	for _, file := range w.journal.below(name) {
		w.lookSoon(file, quiet)
	}
}

// below returns the object files below a name that may have been a directory.
func (j *Journal) below(dir string) []string {
	if strings.HasSuffix(dir, yamlSuffix) {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var names []string
	for stem, e := range j.stems {
		if within(stem, dir) && e.known.file != (digest{}) {
			names = append(names, e.name())
		}
	}
	return names
}

// doubt makes the next look at a file a thorough one.
func (j *Journal) doubt(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entryAt(name); e != nil {
		e.stamp = stamp{}
	}
	if p := j.problems[name]; p != nil {
		p.stamp = stamp{}
	}
}

// entryAt returns the entry of an object file, nil if there is none. It needs mu.
func (j *Journal) entryAt(name string) *entry {
	if stem, ok := strings.CutSuffix(name, yamlSuffix); ok {
		return j.stems[stem]
	}
	return nil
}

// isDir reports whether name is a directory, which may hold object files.
func (w *watcher) isDir(name string) bool {
	info, err := w.journal.files.Stat(name)
	return err == nil && info.IsDir()
}

// lookInto looks at a new directory.
func (w *watcher) lookInto(dir string) {
	var s sweep
	w.journal.sweepDir(dir, &s, w.notifier)
	for name := range s.found {
		w.lookSoon(name, quiet)
	}
}

// lookSoon schedules a look at a file, after a time without changes.
func (w *watcher) lookSoon(name string, after time.Duration) *scheduledCheck {
	l := w.looks[name]
	if l == nil {
		l = &scheduledCheck{}
		w.looks[name] = l
	}
	l.time = time.Now()
	if after > 0 {
		l.time = l.time.Add(after).Truncate(step).Add(step)
	}
	if w.lookNext.IsZero() || l.time.Before(w.lookNext) {
		w.lookNext = l.time
	}
	return l
}

// lookAt looks at all files that are due.
func (w *watcher) lookAt(ctx context.Context, now time.Time) {
	w.lookNext = time.Time{}
	for name, l := range w.looks {
		if ctx.Err() != nil {
			return
		}
		switch {
		case l.time.After(now):
		case w.busy[name] != nil:
			l.time = now.Add(quiet)
		default:
			w.lookNow(name, l)
		}
		if w.looks[name] == l && (w.lookNext.IsZero() || l.time.Before(w.lookNext)) {
			w.lookNext = l.time
		}
	}
	w.next(ctx)
}

func (w *watcher) lookNow(name string, l *scheduledCheck) {
	p, wait := w.journal.examine(name, l)
	switch {
	case wait > 0:
		l.time = time.Now().Add(wait)
	case p != nil:
		delete(w.looks, name)
		w.busy[name] = l
		w.waiting = append(w.waiting, p)
	default:
		delete(w.looks, name)
		w.dealtWith(l)
	}
}

// next starts decisions, up to the limit of concurrent ones.
func (w *watcher) next(ctx context.Context) {
	for len(w.waiting) > 0 && len(w.busy)-len(w.waiting) < proposalLimit {
		p := w.waiting[0]
		w.waiting = w.waiting[1:]
		go func() {
			says, err := w.decide(ctx, &p.Edit)
			w.results <- result{p, says, err}
		}()
	}
}

// take processes the result of a proposal.
func (w *watcher) take(ctx context.Context, r result) {
	name := r.proposal.name
	l := w.busy[name]
	delete(w.busy, name)
	defer w.next(ctx)
	if r.err == nil {
		w.accept(r.proposal, r.says)
		w.dealtWith(l)
		return
	}
	if ctx.Err() != nil {
		return
	}
	if errors.Is(r.err, driver.ErrBroken) {
		w.journal.broken(name, problem{reason: oneLine(r.err), stamp: r.proposal.stamp, final: true})
	} else {
		// A conflict with another write is over at the next attempt.
		if l.tries++; l.tries > 2 {
			w.journal.broken(name, problem{reason: oneLine(r.err), stamp: r.proposal.stamp})
		}
		again := w.lookSoon(name, backoff(l.tries))
		again.tries = l.tries
	}
	w.projectSoon() // it waited for the decision
	w.dealtWith(l)
}

// accept makes the file of a proposal the known state of its object, and schedules a comparison with the object's
// record.
func (w *watcher) accept(p *proposal, says []byte) {
	j := w.journal
	j.mended(p.name)
	j.mu.Lock()
	e := j.entries[p.Key]
	if e == nil {
		j.mu.Unlock()
		return // there is no object, and never was
	}
	newest := operation{entry: e, revision: e.newest, deleted: !e.exists()}
	j.mu.Unlock()
	now := fileState{file: p.hash}
	if !p.Deleted() {
		now.says = w.writtenDigest(p, says)
		// An object that people cannot read must not be kept in their words.
		shown, err := j.shown(&newest)
		now.written = err == nil && shown != nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if now.written {
		w.unsaved = append(w.unsaved, embedded.Note{Name: documentNotes + e.key, Value: p.Document})
	} else if e.known.written {
		w.unsaved = append(w.unsaved, embedded.Note{Name: documentNotes + e.key})
	}
	e.known, e.stamp, e.base = now, p.stamp, nil
	w.unsaved = append(w.unsaved, e.note(now))
	if w.saveAt.IsZero() {
		w.saveAt = time.Now().Add(saveDelay)
	}
	j.soil(e)
}

// writtenDigest returns the hash of the file that the server would have written instead of a person's; zero if the
// two are not equivalent.
func (w *watcher) writtenDigest(p *proposal, says []byte) digest {
	if p.more || says == nil {
		return digest{}
	}
	shown, _, ok := visible(says, p.resource.Status)
	if !ok {
		return digest{}
	}
	text, err := encodeYAML(shown)
	if err != nil {
		return digest{}
	}
	return digestOf(text)
}

func (w *watcher) dealtWith(l *scheduledCheck) {
	if l.initial {
		l.initial = false
		w.initial--
	}
	if w.first && w.initial == 0 {
		w.journal.observe.Do(func() { close(w.journal.observed) })
	}
}

// broken records that a file is not served, and logs each reason once.
func (j *Journal) broken(name string, p problem) {
	j.mu.Lock()
	before := j.problems[name]
	j.problems[name] = &p
	j.mu.Unlock()
	if before == nil || before.reason != p.reason {
		j.logger.Error("files: the file is not served, the previous object still is", "file", j.path(name), "err", errors.New(p.reason))
	}
}

func (j *Journal) mended(name string) {
	j.mu.Lock()
	before := j.problems[name]
	delete(j.problems, name)
	j.mu.Unlock()
	if before != nil {
		j.logger.Info("files: the file is valid again", "file", j.path(name))
	}
}

// examine looks at one file: it returns the proposal that it makes, or the time to wait before the next look.
func (j *Journal) examine(name string, l *scheduledCheck) (p *proposal, wait time.Duration) {
	// seems reports whether to wait for an editor that may not have finished.
	seems := func(what string) bool {
		if l.initial {
			return false
		}
		if l.seems != what {
			l.seems, l.since = what, time.Now()
		}
		return time.Since(l.since) < patience
	}
	wrong := func(s stamp, format string, args ...any) (*proposal, time.Duration) {
		reason := fmt.Sprintf(format, args...)
		if seems(reason) {
			return nil, patience
		}
		j.broken(name, problem{reason: reason, stamp: s, final: true})
		return nil, 0
	}

	if !j.isHere() {
		return nil, 0
	}
	dir := path.Dir(name)
	r := j.layout.resourceAt(dir)
	info, err := j.files.Stat(name)
	if r == nil {
		if err != nil {
			j.mended(name)
			return nil, 0
		}
		if why := j.misplaced(name, info); why != "" {
			return wrong(stampOf(info), "%s", why)
		}
		return nil, 0
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrong(stamp{}, "%v", err)
	}
	if err == nil {
		if why := unfit(name, info); why != "" {
			return wrong(stampOf(info), "%s", why)
		}
	}

	j.mu.Lock()
	e, refused := j.entryAt(name), j.problems[name]
	j.mu.Unlock()
	if err == nil && refused != nil && refused.final && stampOf(info).same(refused.stamp) {
		return nil, 0
	}
	verdict, err := j.compare(e, name)
	if err != nil {
		return wrong(stamp{}, "%v", err)
	}
	switch verdict {
	case absent, asKnown:
		j.mended(name)
		if e != nil {
			j.mu.Lock()
			defer j.mu.Unlock()
			if e.known.revision != e.newest || e.known.next != (digest{}) {
				j.soil(e)
			}
		}
		return nil, 0
	case removed:
		return j.examineRemoved(e, name, seems, wrong)
	}
	return j.examineEdited(r, e, name, wrong)
}

// verdict is the result of comparing a file with its known state.
type verdict int

const (
	absent  verdict = iota // it does not exist and should not
	asKnown                // it is as the server, or an accepted edit, left it
	removed                // it should exist and does not
	edited                 // it is any other file
)

// compare compares the file of an entry with its known state. e is nil if there is no entry.
func (j *Journal) compare(e *entry, name string) (verdict, error) {
	var k fileState
	var s stamp
	if e != nil {
		k, s = e.known, e.stamp
	}
	info, err := j.files.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if k.file == (digest{}) {
			return absent, nil
		}
		return removed, nil
	case err != nil:
		return edited, err
	case s != (stamp{}) && stampOf(info).same(s):
		return asKnown, nil
	}
	there, err := j.load(name)
	if err != nil || !k.has(there.hash) {
		return edited, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e.stamp = there.stamp
	if there.hash == k.next {
		e.known = fileState{revision: k.revision, file: k.next, next: k.next}
	}
	return asKnown, nil
}

type complaint = func(s stamp, format string, args ...any) (*proposal, time.Duration)

// examineRemoved looks at a missing file that should exist.
func (j *Journal) examineRemoved(e *entry, name string, seems func(string) bool, wrong complaint) (*proposal, time.Duration) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := j.files.Stat(dir); err == nil && !info.IsDir() {
			return wrong(stamp{}, "%s is not a directory: the server neither reads nor writes files below it", j.path(dir))
		}
	}
	if seems("removed") {
		return nil, patience
	}
	return &proposal{Edit: driver.Edit{Key: e.key, Path: j.path(name)}, name: name}, 0
}

// examineEdited looks at a new or changed file.
func (j *Journal) examineEdited(r *resource, e *entry, name string, wrong complaint) (*proposal, time.Duration) {
	info, err := j.files.Stat(name)
	if err != nil {
		return nil, quiet
	}
	s, at := stampOf(info), time.Now()
	data, err := j.read(name, maxFile)
	switch {
	case errors.Is(err, errTooLarge):
		return wrong(s, "larger than %d MiB", maxFile>>20)
	case err != nil:
		return wrong(s, "%v", err)
	}
	document, err := parse(data)
	if err != nil {
		return wrong(s, "%v", err)
	}
	key, document, err := identify(document, r, path.Base(path.Dir(name)), strings.TrimSuffix(path.Base(name), yamlSuffix))
	if err != nil {
		return wrong(s, "%v", err)
	}
	p := &proposal{Edit: driver.Edit{Key: key, Path: j.path(name), Document: document}, name: name, resource: r, hash: digestOf(data)}
	p.Onto = p.onto
	if !s.racy(at) {
		p.stamp = s
	}
	_, p.more, _ = visible(document, r.Status)
	if e != nil {
		p.base = j.base(e, e.known)
	}
	return p, 0
}

// isHere reports whether the root is still the directory that was opened. If it was moved or unmounted, missing files
// mean nothing.
func (j *Journal) isHere() bool {
	info, err := j.files.Stat(lockPath)
	return err == nil && (os.SameFile(info, j.locked) || inode(info) == 0)
}

// ignored reports whether programs use files of this name for their own purposes.
func ignored(base string) bool {
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "#") || strings.HasSuffix(base, "~") || base == "4913" ||
		slices.Contains([]string{".swp", ".swx", ".tmp", ".bak", ".orig", ".rej"}, path.Ext(base))
}

// unfit returns the reason why an entry of a directory of objects cannot be an object file, without reading it; empty
// if there is none.
func unfit(name string, info fs.FileInfo) string {
	base := path.Base(name)
	switch {
	case info.IsDir():
		return "a directory: objects must be files"
	case info.Mode()&fs.ModeSymlink != 0:
		return "a symbolic link: objects must be regular files"
	case !info.Mode().IsRegular():
		return "no ordinary file"
	case strings.HasSuffix(base, yamlSuffix) && base != yamlSuffix:
		return ""
	case strings.HasSuffix(base, ".yml"), strings.HasSuffix(base, ".json"):
		return fmt.Sprintf("files of objects must end in %s: rename the file", yamlSuffix)
	}
	return "not a file of an object: keep it elsewhere"
}

// misplaced returns the reason why an entry outside of the directories of objects is a problem; empty if it is
// harmless.
func (j *Journal) misplaced(name string, info fs.FileInfo) string {
	if info.IsDir() {
		return ""
	}
	dir := path.Dir(name)
	for i := range j.layout.resources {
		r := &j.layout.resources[i]
		switch at := r.dir(); {
		case dir == at && r.Namespaced:
			return "not in the directory of a namespace"
		case dir == at:
			return fmt.Sprintf("not in the directory %s", clusterDir)
		case path.Dir(dir) == at:
			if !r.Namespaced {
				return fmt.Sprintf("%s are cluster-scoped: their files must be in the directory %s", at, clusterDir)
			}
			return fmt.Sprintf("%s is not a valid name for the directory of a namespace", path.Base(dir))
		case within(dir, at):
			return "too deep: files must be in the directory of their namespace"
		}
	}
	if ext := path.Ext(name); ext == yamlSuffix || ext == ".yml" || ext == ".json" {
		return "no kind of this server has objects in this directory"
	}
	return ""
}
