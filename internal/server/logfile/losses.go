package logfile

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// reportInterval is how long the log is silent about further losses.
const reportInterval = time.Minute

// Losses counts what was to be kept and is lost. It logs the first loss at once, and those that
// follow at most once a minute, with their number: a full disk must not fill another one. It may
// be used concurrently.
type Losses struct {
	what  string
	total atomic.Int64

	mu         sync.Mutex
	reported   time.Time
	unreported int
	last       error
}

// NewLosses counts the losses of what, which is the beginning of a sentence: "Audit events".
func NewLosses(what string) *Losses { return &Losses{what: what} }

// Add counts n more, lost because of err.
func (l *Losses) Add(n int, err error) {
	l.total.Add(int64(n))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreported += n
	l.last = err
	if now := time.Now(); now.Sub(l.reported) >= reportInterval {
		l.reported = now
		l.report()
	}
}

// Report logs what has been lost since the last time.
func (l *Losses) Report() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report()
}

func (l *Losses) report() {
	if l.unreported > 0 {
		klog.Background().Error(l.last, l.what+" are lost", "lost", l.unreported)
		l.unreported = 0
	}
}

// Total is how many have been lost so far.
func (l *Losses) Total() int64 { return l.total.Load() }
