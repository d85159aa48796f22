package files

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"

	"github.com/fsnotify/fsnotify"
)

// sweep is the result of a walk through the whole tree.
type sweep struct {
	// found are the files that differ from their known state.
	found map[string]bool
	// seen are all files.
	seen      map[string]bool
	took      time.Duration
	unwatched bool // a directory cannot be watched
}

// startSweep starts a walk through the tree in the background.
func (w *watcher) startSweep(ctx context.Context) {
	w.sweeping = true
	go func() {
		begin := time.Now()
		s := w.journal.sweep(ctx, w.notifier)
		s.took = time.Since(begin)
		w.swept <- s
	}()
}

func (w *watcher) takeSweep(s sweep) {
	for name := range s.found {
		l := w.looks[name]
		if l == nil {
			l = w.lookSoon(name, 0)
		}
		if !w.first && !l.initial {
			l.initial = true
			w.initial++
		}
	}
	if s.unwatched && !w.blind {
		w.blind = true
		w.journal.logger.Warn("files: cannot watch all directories, scanning the tree periodically instead", "dir", w.journal.root)
	}
	w.first = true
	w.dealtWith(&scheduledCheck{})
}

// sweep walks through the tree, watches its directories, and finds the files to look at.
func (j *Journal) sweep(ctx context.Context, notifier *fsnotify.Watcher) sweep {
	s := sweep{found: map[string]bool{}, seen: map[string]bool{}}
	if !j.isHere() {
		return s
	}
	j.sweepDir(".", &s, notifier)
	if ctx.Err() != nil {
		return sweep{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		if name := e.name(); e.known.file != (digest{}) && !s.seen[name] {
			s.found[name] = true
		}
	}
	for name := range j.problems {
		if !s.seen[name] {
			s.found[name] = true
		}
	}
	return s
}

// sweepDir walks through a directory.
func (j *Journal) sweepDir(dir string, s *sweep, notifier *fsnotify.Watcher) {
	if s.found == nil {
		s.found, s.seen = map[string]bool{}, map[string]bool{}
	}
	j.watch(dir, s, notifier)
	list, err := j.files.List(dir)
	if err != nil {
		return
	}
	objects := j.layout.resourceAt(dir) != nil
	for _, item := range list {
		if ignored(item.Name()) {
			continue
		}
		name := path.Join(dir, item.Name())
		s.seen[name] = true
		if item.IsDir() && !objects {
			if j.leadsToObjects(name) {
				j.sweepDir(name, s, notifier)
			} else {
				j.sweepForeign(name, s, notifier)
			}
			continue
		}
		if !objects {
			if info, err := item.Info(); err == nil && j.misplaced(name, info) != "" {
				s.found[name] = true
			}
			continue
		}
		if !j.looksKnown(name, item) {
			s.found[name] = true
		}
	}
}

// watch requests events for a directory.
func (j *Journal) watch(dir string, s *sweep, notifier *fsnotify.Watcher) {
	if notifier == nil {
		return
	}
	if err := notifier.Add(j.path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.unwatched = true
	}
}

// sweepForeign watches a directory that cannot hold objects, and looks for files that people take for objects.
func (j *Journal) sweepForeign(dir string, s *sweep, notifier *fsnotify.Watcher) {
	j.watch(dir, s, notifier)
	list, err := j.files.List(dir)
	if err != nil {
		return
	}
	for _, item := range list {
		name := path.Join(dir, item.Name())
		if ignored(item.Name()) || item.IsDir() {
			continue
		}
		s.seen[name] = true
		if info, err := item.Info(); err == nil && j.misplaced(name, info) != "" {
			s.found[name] = true
		}
	}
}

// leadsToObjects reports whether a directory is, or can contain, a directory of objects.
func (j *Journal) leadsToObjects(dir string) bool {
	if j.layout.resourceAt(dir) != nil {
		return true
	}
	for i := range j.layout.resources {
		if within(j.layout.resources[i].dir(), dir) {
			return true
		}
	}
	return false
}

// looksKnown reports whether a file's stamp is unchanged.
func (j *Journal) looksKnown(name string, item fs.DirEntry) bool {
	info, err := item.Info()
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) // a missing file is not seen either
	}
	s := stampOf(info)
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.problems[name]; p != nil {
		return p.final && s.same(p.stamp)
	}
	e := j.entryAt(name)
	return e != nil && e.stamp != (stamp{}) && s.same(e.stamp)
}
