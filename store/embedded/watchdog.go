package embedded

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// watchdog checks a journal's directory at intervals. So even an idle journal notices that its directory is gone,
// locked by another process, or on a mount that does not answer. Only the watchdog's goroutine ever waits for the
// file system; its findings are read without waiting.
type watchdog struct {
	dir      string
	interval time.Duration
	began    atomic.Int64 // the start of the check in progress, in Unix nanoseconds; 0 if there is none
	stop     chan struct{}
	ended    chan struct{}
}

const (
	// checkInterval is the default interval between checks.
	checkInterval = time.Second
	// unanswered is the number of intervals that a check may take.
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

// err returns an error while the directory does not answer. The directory may answer again, and the journal then
// continues as before.
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

// close ends the checks. It does not wait for a hanging check, which ends by itself when the file system answers.
func (w *watchdog) close() {
	close(w.stop)
	select {
	case <-w.ended:
	case <-time.After(w.interval):
	}
}
