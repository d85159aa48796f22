// Package filewatch reads a file or folder of the operator again when it changes.
package filewatch

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// pollInterval is the time between reads without a sign of a change: some network file systems do not report
	// changes, and a rejected file may have become valid for another reason.
	pollInterval = time.Minute
	// debounce is the time for which changes are collected before the file is read: an editor causes several events,
	// and a file that is written in place is incomplete at first.
	debounce = 50 * time.Millisecond
)

// Run calls load once, then after each change of the file and every minute, until ctx is done. It does not return
// while load runs. Load must keep its current content when it fails; its error is logged, once until the error
// changes. What names the file in the log, as the beginning of a sentence: "Token file".
func Run(ctx context.Context, what, path string, load func(context.Context) error) {
	name := filepath.Base(path)
	// Watch the folder, because editors and mounted secrets replace files.
	follow(ctx, what, path, filepath.Dir(path), func(event fsnotify.Event) bool { return concerns(event, name) }, load)
}

// RunDir is Run for all files of a folder, without its subfolders.
func RunDir(ctx context.Context, what, dir string, load func(context.Context) error) {
	follow(ctx, what, dir, dir, func(fsnotify.Event) bool { return true }, load)
}

func follow(ctx context.Context, what, path, dir string, concerns func(fsnotify.Event) bool, load func(context.Context) error) {
	logger := klog.FromContext(ctx).WithValues("file", path)
	watcher, err := fsnotify.NewWatcher()
	var events <-chan fsnotify.Event
	var failures <-chan error
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(dir)
		events, failures = watcher.Events, watcher.Errors
	}
	if err != nil {
		logger.Error(err, what+" is polled, because its folder cannot be watched", "interval", pollInterval)
	}
	reported := ""
	run(ctx, concerns, events, failures, func() {
		err := load(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			reported = ""
		case err.Error() != reported:
			reported = err.Error()
			logger.Error(err, what+" was not reloaded, the previous content stays in force")
		}
	})
}

func run(ctx context.Context, concerns func(fsnotify.Event) bool, events <-chan fsnotify.Event, failures <-chan error, load func()) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	for pending := true; ; {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-gathered.C:
			pending = false
			load()
		case event := <-events:
			changed = concerns(event)
		case <-failures: // events may have been lost
			changed = true
		case <-poll.C:
			changed = true
		}
		if changed && !pending {
			pending = true
			gathered.Reset(debounce)
		}
	}
}

// concerns reports whether an event in the file's folder may have changed the file. A mounted secret is a link
// through a link called ..data, which is replaced.
func concerns(event fsnotify.Event, name string) bool {
	base := filepath.Base(event.Name)
	return base == name || base == "..data"
}
