package logfile

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// reportInterval is the minimum time between two log lines about losses.
const reportInterval = time.Minute

// Losses counts lost lines or events. It logs the first loss at once, and later losses at most once a minute, with
// their number, so that a full disk does not fill another one with log lines. It may be used concurrently.
type Losses struct {
	what  string
	total atomic.Int64

	mu         sync.Mutex
	reported   time.Time
	unreported int
	last       error
}

// NewLosses returns a counter of losses. what begins its log lines, for example "Audit events".
func NewLosses(what string) *Losses { return &Losses{what: what} }

// Add counts n more losses because of err.
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

// Report logs the losses since the last log line.
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

// Total returns the number of losses so far.
func (l *Losses) Total() int64 { return l.total.Load() }
