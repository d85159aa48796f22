package embedded

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// watchdog looks at a journal's directory every now and then, so that a journal on
// which nothing is written notices too that its directory is gone, locked by another
// process, or on a mount that does not answer. Only its own goroutine ever waits for
// the file system; what it has seen is read without waiting.
type watchdog struct {
	dir      string
	interval time.Duration
	began    atomic.Int64 // the check that goes on, in Unix nanoseconds; 0 if none does
	stop     chan struct{}
	ended    chan struct{}
}

const (
	// checkInterval is how often a directory is looked at unless options say otherwise.
	checkInterval = time.Second
	// unanswered is how many intervals a check may take.
	unanswered = 10
)

// watch checks until the first failure, which it reports, or until close.
func watch(dir string, interval time.Duration, verify func() error, failed func(error)) *watchdog {
	if interval <= 0 {
		interval = checkInterval
	}
	w := &watchdog{dir: dir, interval: interval, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-ticker.C:
			}
			w.began.Store(time.Now().UnixNano())
			err := verify()
			w.began.Store(0)
			if err != nil {
				failed(err)
				return
			}
		}
	}()
	return w
}

// err says that the directory does not answer. It may again, which the journal then
// goes on with as if nothing had been.
func (w *watchdog) err() error {
	began := w.began.Load()
	if began == 0 {
		return nil
	}
	if waited := time.Since(time.Unix(0, began)); waited > unanswered*w.interval {
		return fmt.Errorf("%s: %w, for %s", w.dir, journal.ErrUnresponsive, waited.Round(time.Second))
	}
	return nil
}

// close ends the checks. It does not wait for one that hangs, which ends by itself
// when the file system answers.
func (w *watchdog) close() {
	close(w.stop)
	select {
	case <-w.ended:
	case <-time.After(w.interval):
	}
}
