package budget

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// usualPercent is how much garbage there may be before it is collected, of what lives. It is Go's default.
	usualPercent = 100
	// busyGarbage is how much there may be at least, while the process is busy.
	busyGarbage = 64 << 20
	// busyGap is how soon one collection follows another in a process that is busy: each costs about as much as what
	// lives, whether there was little garbage or much.
	busyGap = 500 * time.Millisecond
	// busyDelay is how long a process has to start, which makes garbage that it would keep the room for.
	busyDelay = 5 * time.Second
)

// SpareCollections lets a process that is busy and holds little have 64 MiB of garbage before it is collected, or an
// eighth of its container's limit if that is less, instead of as much as it holds. A server that holds 20 MB
// spends a sixth of its processor time on collections else. A process that is not busy gives the memory back. What
// the environment says (GOGC) stands. It is the process's own decision: only its main function may call it, and the function
// returned ends it.
func SpareCollections() (end func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	garbage := int64(busyGarbage)
	if limit := ContainerLimit(); limit > 0 {
		garbage = min(garbage, limit/8)
	}
	return spareCollections(garbage, time.Now().Add(busyDelay), func(percent int) { debug.SetGCPercent(percent) })
}

func spareCollections(garbage int64, from time.Time, set func(percent int)) (end func()) {
	c := &collections{garbage: garbage, set: set, last: from, percent: usualPercent}
	c.watch()
	return func() { c.ended.Store(true) }
}

// collections decides after each collection how much garbage there may be before the next.
type collections struct {
	garbage int64
	set     func(percent int)
	ended   atomic.Bool

	// Of the goroutine that runs finalizers.
	last    time.Time
	percent int
}

// cycle is garbage as soon as it is made, so that its finalizer runs after the next collection.
type cycle struct{ of *collections }

func (c *collections) watch() {
	runtime.SetFinalizer(&cycle{c}, func(*cycle) {
		if c.ended.Load() {
			c.set(usualPercent)
			return
		}
		c.collected(time.Now(), liveBytes())
		c.watch()
	})
}

func liveBytes() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

func (c *collections) collected(now time.Time, live int64) {
	percent := usualPercent
	// How soon it would have come with as much garbage as is usual.
	if gap := now.Sub(c.last) * usualPercent / time.Duration(c.percent); gap >= 0 && gap < busyGap {
		percent = max(percent, int(100*c.garbage/max(live, 1<<20)))
	}
	if now.After(c.last) {
		c.last = now
	}
	// Setting it stops the world for a moment.
	if percent != usualPercent && percent > c.percent*9/10 && percent < c.percent*11/10 {
		return
	}
	if percent != c.percent {
		c.set(percent)
		c.percent = percent
	}
}
