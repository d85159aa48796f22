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

	"github.com/annexapi/annex/store/journal"
)

const (
	// An editor is given so long to finish a file: since the last change to it, and,
	// if it seems to be gone or broken, since it first seemed so.
	quiet    = 50 * time.Millisecond
	patience = 300 * time.Millisecond
	// A proposal that could not be carried out is made again after so long, and then
	// after twice as long each time.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second
	// One that only came too early is made again at once so many times, and then
	// after quiet, and twice as long each time.
	eagerRetries  = 3
	lastBusyRetry = time.Second
	// Without anybody to tell of changes, the tree is looked through so often.
	blindRescan = 500 * time.Millisecond

	proposalLimit = 64
)

// Problem is a file in the tree that is not served.
type Problem struct {
	// Path is the file's, Reason what is wrong with it.
	Path, Reason string
}

type problem struct {
	reason string
	stamp  stamp
	// final says that nothing will be tried before the file changes.
	final bool
}

// Problems returns the files that are not served, by path.
func (j *Journal) Problems() []Problem {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]Problem, 0, len(j.problems))
	for name, p := range j.problems {
		list = append(list, Problem{j.path(name), p.reason})
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// Observed is closed when Run has looked at all files once, and has proposed what
// differed.
func (j *Journal) Observed() <-chan struct{} { return j.observed }

// look asks Run to look at a file. If there are too many to name, it looks at all.
func (j *Journal) look(name string) {
	select {
	case j.edited <- name:
	default:
	}
}

// Run watches the tree until the context ends, and has every edit decided upon. It
// calls decide from several goroutines, for one key at a time, and waits for them
// before it returns. It is called once, before Close.
func (j *Journal) Run(ctx context.Context, decide Decide) error {
	w := &watcher{
		journal: j,
		decide:  decide,
		looks:   map[string]*look{},
		busy:    map[string]*look{},
		results: make(chan result),
		swept:   make(chan sweep, 1),
	}
	for i := range j.layout.resources {
		r := &j.layout.resources[i]
		dir := r.Dir
		if !r.Namespaced {
			dir = r.dirOf("")
		}
		// People should find where to write.
		if err := j.do(func() error { return j.offer(dir) }); err != nil {
			return fmt.Errorf("watch files %s: %w", j.root, err)
		}
	}
	var events chan fsnotify.Event
	var failures chan error
	if j.watched {
		notifier, err := fsnotify.NewWatcher()
		if err != nil {
			j.logger.Warn("files: the tree cannot be watched, it is looked through instead", "dir", j.root, "err", err)
		} else {
			defer notifier.Close()
			w.notifier, events, failures = notifier, notifier.Events, notifier.Errors
		}
	}
	w.run(ctx, events, failures)
	return nil
}

// offer makes a directory, unless people have put something else there.
func (j *Journal) offer(dir string) error {
	if err := j.mkdir(dir); err != nil && !obstructed(err) {
		return err
	}
	return nil
}

// watcher is the state of Run, which is one goroutine's.
type watcher struct {
	journal  *Journal
	decide   Decide
	notifier *fsnotify.Watcher // nil if changes cannot be watched

	looks   map[string]*look // files to look at
	busy    map[string]*look // files whose proposal is being decided on
	waiting []*Proposal
	results chan result
	swept   chan sweep

	sweeping bool
	first    bool // the first sweep has been taken in
	initial  int  // its files that have not been dealt with
	blind    bool // some directory cannot be watched
}

// look is a file that has to be looked at.
type look struct {
	at time.Time
	// seems is a state in which an editor may leave a file for a moment, and since
	// when it is in it.
	seems string
	since time.Time
	// tries counts proposals that came to nothing.
	tries   int
	busy    int // those among them that only came too early, in a row
	initial bool
}

type result struct {
	proposal *Proposal
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
			w.lookAt(ctx, now)
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
				w.journal.logger.Warn("files: changes may have been missed, looking at all files", "dir", w.journal.root, "err", err)
			}
			nextSweep = time.Now()
		case name := <-w.journal.edited:
			w.lookSoon(name, 0)
			if len(w.journal.edited) >= cap(w.journal.edited)-1 {
				nextSweep = time.Now()
			}
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

// end waits for the decisions in progress.
func (w *watcher) end() {
	for _, p := range w.waiting {
		delete(w.busy, p.name)
	}
	w.waiting = nil
	for len(w.busy) > 0 {
		r := <-w.results
		delete(w.busy, r.proposal.name)
	}
	if w.sweeping {
		<-w.swept
	}
}

// untilNext is how long there is nothing to do.
func (w *watcher) untilNext(now, nextSweep time.Time) time.Duration {
	next := nextSweep
	if w.sweeping {
		next = now.Add(time.Hour)
	}
	for _, l := range w.looks {
		if l.at.Before(next) {
			next = l.at
		}
	}
	return max(next.Sub(now), 0)
}

// note takes in that something has happened to a file or directory.
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
		// The stamp may not show it.
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

// below returns the object files below what may have been a directory.
func (j *Journal) below(dir string) []string {
	if strings.HasSuffix(dir, yamlSuffix) {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var names []string
	for stem, e := range j.stems {
		if within(stem, dir) && e.path() != "" {
			names = append(names, e.path())
		}
	}
	return names
}

// doubt makes the next look at a file a thorough one.
func (j *Journal) doubt(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.stems[stemOf(name)]; e != nil && e.path() == name {
		e.stamp = stamp{}
	}
	if p := j.problems[name]; p != nil {
		p.stamp = stamp{}
	}
}

func stemOf(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, yamlSuffix), binarySuffix)
}

// isDir reports whether objects' files can be below this.
func (w *watcher) isDir(name string) bool {
	info, err := w.journal.files.Stat(name)
	return err == nil && info.IsDir()
}

// lookInto looks at a directory that has appeared.
func (w *watcher) lookInto(dir string) {
	var s sweep
	w.journal.sweepDir(dir, &s, w.notifier)
	for name := range s.found {
		w.lookSoon(name, quiet)
	}
}

// lookSoon has a file looked at when it has not changed for a while.
func (w *watcher) lookSoon(name string, after time.Duration) *look {
	l := w.looks[name]
	if l == nil {
		l = &look{}
		w.looks[name] = l
	}
	l.at = time.Now().Add(after)
	return l
}

// lookAt looks at all files whose time has come.
func (w *watcher) lookAt(ctx context.Context, now time.Time) {
	for name, l := range w.looks {
		if ctx.Err() != nil {
			return
		}
		if l.at.After(now) || w.busy[name] != nil {
			if w.busy[name] != nil {
				l.at = now.Add(quiet)
			}
			continue
		}
		p, wait := w.journal.examine(name, l)
		switch {
		case wait > 0:
			l.at = time.Now().Add(wait)
		case p != nil:
			delete(w.looks, name)
			w.busy[name] = l
			w.waiting = append(w.waiting, p)
		default:
			delete(w.looks, name)
			w.dealtWith(l)
		}
	}
	w.next(ctx)
}

// next starts decisions, if there are not too many under way.
func (w *watcher) next(ctx context.Context) {
	for len(w.waiting) > 0 && len(w.busy)-len(w.waiting) < proposalLimit {
		p := w.waiting[0]
		w.waiting = w.waiting[1:]
		go func() { w.results <- result{p, w.journal.propose(ctx, p, w.decide)} }()
	}
}

// propose has a proposal decided upon.
func (j *Journal) propose(ctx context.Context, p *Proposal, decide Decide) error {
	if err := decide(ctx, p); err != nil {
		return err
	}
	if p.used.Load() {
		return nil
	}
	return j.conform(p.Key, p)
}

// take takes in what has become of a proposal.
func (w *watcher) take(ctx context.Context, r result) {
	name := r.proposal.name
	l := w.busy[name]
	delete(w.busy, name)
	defer w.next(ctx)
	if ctx.Err() != nil {
		return
	}
	switch {
	case r.err == nil:
		w.journal.mended(name)
		w.lookSoon(name, 0)
	case errors.Is(r.err, ErrBroken):
		w.journal.broken(name, problem{reason: oneLine(r.err), stamp: r.proposal.stamp, final: true})
	case r.proposal.busy.Load():
		// It is its turn as soon as what is being written has been.
		after := time.Duration(0)
		if l.busy++; l.busy > eagerRetries {
			after = min(quiet<<min(l.busy-eagerRetries-1, 10), lastBusyRetry)
		}
		again := w.lookSoon(name, after)
		again.tries, again.busy = l.tries, l.busy
	default:
		// A conflict with another write is gone the next time.
		if l.tries++; l.tries > 2 {
			w.journal.broken(name, problem{reason: oneLine(r.err), stamp: r.proposal.stamp})
		}
		again := w.lookSoon(name, min(firstRetry<<min(l.tries-1, 10), lastRetry))
		again.tries = l.tries
	}
	w.dealtWith(l)
}

func (w *watcher) dealtWith(l *look) {
	if l.initial {
		l.initial = false
		w.initial--
	}
	if w.first && w.initial == 0 {
		w.journal.observe.Do(func() { close(w.journal.observed) })
	}
}

// broken notes that a file is not served, and says so once.
func (j *Journal) broken(name string, p problem) {
	j.mu.Lock()
	before := j.problems[name]
	j.problems[name] = &p
	j.mu.Unlock()
	if before == nil || before.reason != p.reason {
		j.logger.Error("files: this file is not served, what was served before still is", "file", j.path(name), "err", errors.New(p.reason))
	}
}

func (j *Journal) mended(name string) {
	j.mu.Lock()
	before := j.problems[name]
	delete(j.problems, name)
	j.mu.Unlock()
	if before != nil {
		j.logger.Info("files: this file is in order again", "file", j.path(name))
	}
}

// examine looks at one file: it returns the proposal that it is, or how long to wait
// before looking again.
func (j *Journal) examine(name string, l *look) (p *Proposal, wait time.Duration) {
	// The patience with an editor: seems returns whether it is to be exercised.
	seems := func(what string) bool {
		if l.initial {
			return false
		}
		if l.seems != what {
			l.seems, l.since = what, time.Now()
		}
		return time.Since(l.since) < patience
	}
	wrong := func(s stamp, format string, args ...any) (*Proposal, time.Duration) {
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
	if errors.Is(j.Err(), journal.ErrTransient) {
		// What is there may be half of a commit, and nothing can be taken in now.
		return nil, patience
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
	e := j.stems[stemOf(name)]
	queued := e != nil && j.queued[e.key] > 0
	known := j.problems[name]
	j.mu.Unlock()
	if queued {
		return nil, quiet // the server is writing it
	}
	if err == nil && known != nil && known.final && stampOf(info).same(known.stamp) {
		return nil, 0
	}
	if own := j.pathOf(e); e != nil && own != name {
		return j.examineOther(e, name, info, err == nil, wrong)
	}
	verdict, err := j.compare(e, name, false)
	if err != nil {
		return wrong(stamp{}, "%v", err)
	}
	switch verdict {
	case absent, asKnown:
		j.mended(name)
		return nil, 0
	case behind:
		if j.adopt(e, name) == nil {
			_ = j.conform(e.key, nil)
		}
		return nil, 0 // if the journal has failed, that is for Recover
	case removed:
		return j.examineRemoved(e, name, seems, wrong)
	}
	return j.examineEdited(r, e, name, seems, wrong)
}

type complaint = func(s stamp, format string, args ...any) (*Proposal, time.Duration)

// examineRemoved looks at a file that should be there.
func (j *Journal) examineRemoved(e *entry, name string, seems func(string) bool, wrong complaint) (*Proposal, time.Duration) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := j.files.Stat(dir); err == nil && !info.IsDir() {
			return wrong(stamp{}, "%s is no directory: nothing below it is read or written", j.path(dir))
		}
	}
	if seems("removed") {
		return nil, patience
	}
	if strings.HasSuffix(name, binarySuffix) {
		// That is damage, and the side file has all of it.
		j.logger.Warn("files: this file was removed and is written again: only the server can write and remove it", "file", j.path(name))
		if err := j.conform(e.key, &Proposal{Key: e.key, name: name, Path: j.path(name)}); err != nil {
			return nil, 0
		}
		return nil, 0
	}
	return &Proposal{Key: e.key, Path: j.path(name), name: name}, 0
}

// examineEdited looks at a file that is new, or not as it was.
func (j *Journal) examineEdited(r *Resource, e *entry, name string, seems func(string) bool, wrong complaint) (*Proposal, time.Duration) {
	info, err := j.files.Stat(name)
	if err != nil {
		return nil, quiet
	}
	s := stampOf(info)
	if strings.HasSuffix(name, binarySuffix) {
		if e == nil {
			return wrong(s, "only the server writes files that end in %s", binarySuffix)
		}
		return wrong(s, "it is not as the server wrote it, and only the server can: remove it, and it is written again")
	}
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
	key, document, err := identify(document, r, path.Base(path.Dir(name)), path.Base(stemOf(name)))
	if err != nil {
		return wrong(s, "%v", err)
	}
	p := &Proposal{Key: key, Path: j.path(name), Document: document, name: name, hash: digestOf(data), stamp: s}
	_, p.more, _ = visible(document, r.Status)
	return p, 0
}

// examineOther looks at a file of an object that has another one.
func (j *Journal) examineOther(e *entry, name string, info fs.FileInfo, exists bool, wrong complaint) (*Proposal, time.Duration) {
	if !exists {
		j.mended(name)
		return nil, 0
	}
	j.mu.Lock()
	replaced, revision := e.object.Replaces, e.revision
	j.mu.Unlock()
	if _, hash, err := j.hash(name); err == nil && hash == replaced {
		// A crash left it behind when the object's file got another ending.
		if err := j.do(func() error { return j.removeObject(name, revision, hash) }); err != nil {
			return nil, 0
		}
		j.mended(name)
		return nil, 0
	}
	own := j.pathOf(e)
	if own == "" {
		own = "no file"
	}
	return wrong(stampOf(info), "the object is in %s already: remove one of the two", j.path(own))
}

// isHere reports whether the root is still the directory that was opened. One that
// was moved or unmounted says nothing about the objects.
func (j *Journal) isHere() bool {
	info, err := j.files.Stat(lockPath)
	return err == nil && (os.SameFile(info, j.locked) || inode(info) == 0)
}

// ignored reports names that programs use for their own ends.
func ignored(base string) bool {
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "#") || strings.HasSuffix(base, "~") || base == "4913" ||
		slices.Contains([]string{".swp", ".swx", ".tmp", ".bak", ".orig", ".rej"}, path.Ext(base))
}

// unfit says what is wrong with something in a directory of objects before it is
// read; empty if nothing is.
func unfit(name string, info fs.FileInfo) string {
	base := path.Base(name)
	switch {
	case info.IsDir():
		return "a directory: objects are files"
	case info.Mode()&fs.ModeSymlink != 0:
		return "a symbolic link: objects are files"
	case !info.Mode().IsRegular():
		return "no ordinary file"
	case strings.HasSuffix(base, binarySuffix), strings.HasSuffix(base, yamlSuffix) && base != yamlSuffix:
		return ""
	case strings.HasSuffix(base, ".yml"), strings.HasSuffix(base, ".json"):
		return fmt.Sprintf("files of objects end in %s: rename it", yamlSuffix)
	}
	return "not a file of an object: keep it elsewhere"
}

// misplaced says what is wrong with something that is in no directory of objects;
// empty if it does no harm there.
func (j *Journal) misplaced(name string, info fs.FileInfo) string {
	if info.IsDir() {
		return ""
	}
	dir := path.Dir(name)
	for i := range j.layout.resources {
		r := &j.layout.resources[i]
		switch {
		case path.Dir(name) == r.Dir && r.Namespaced:
			return "not in the directory of a namespace"
		case path.Dir(name) == r.Dir:
			return fmt.Sprintf("not in the directory %s", clusterDir)
		case path.Dir(dir) == r.Dir:
			if !r.Namespaced {
				return fmt.Sprintf("%s have no namespace: they are in the directory %s", r.Dir, clusterDir)
			}
			return fmt.Sprintf("%s is not how the directory of a namespace can be called", path.Base(dir))
		case within(dir, r.Dir):
			return "too deep: objects are in the directory of their namespace"
		}
	}
	if ext := path.Ext(name); ext == yamlSuffix || ext == ".yml" || ext == ".json" {
		return "no kind of this server has its objects here"
	}
	return ""
}
