package budget

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// usualPercent is how much garbage there may be before it is collected, of what lives. It is Go's default, and the most for a
	// process that is not busy.
	usualPercent = 100
	// A process that starts has garbage collected often as long as it holds little, less than smallStart: what it makes then mostly
	// stays, and lies the closer together the sooner the garbage in between is used again. A collection of so little takes a
	// few milliseconds.
	smallStartPercent, smallStart = 25, 12 << 20
	// Beyond, startPercent is how much there may be at most, and startGarbage with startPart if it holds much.
	startPercent, startPart, startGarbage = 300, 2, 64 << 20
	// spareGarbage and a part of what lives is how much garbage there may be in a process that holds much and is not busy: what is
	// stored are bytes that a collection does not look into, so that one costs little beside what it holds.
	spareGarbage = 16 << 20
	sparePart    = 4
	// A process that is busy may have twice as much as lives: not less than the least, nor, unless as much lives, more than
	// the most.
	leastBusyGarbage, mostBusyGarbage = 128 << 20, 256 << 20
	// listGarbage and a part of what lives is how much garbage there may be at most while long lists are made: these make a great
	// deal of it, which lives for the time of an object, and would take as much memory as it may.
	listGarbage = 12 << 20
	listPart    = 64
	// busyGap is how soon one collection follows another in a process that is busy: each costs about as much as what
	// lives, whether there was little garbage or much.
	busyGap = 500 * time.Millisecond
	// calmGap is how soon at most one collection follows another in a process that has less garbage than is usual.
	calmGap = 2 * time.Second
	// busyDelay is how long a process has to start, which makes garbage that it would keep the room for.
	busyDelay = 5 * time.Second
	// restPeriod is how long a process has to make less than restGarbage before it counts as resting, and before it gives back
	// the memory that its start took. After work, it keeps its memory for longRest such periods: a burst that follows a minute's
	// rest costs up to twice the processor time if the kernel has to find and clear the memory again.
	restPeriod  = 5 * time.Second
	restGarbage = 8 << 20
	longRest    = 36
	// worthGivingBack is what there has to be for that, and a part of what lives.
	worthGivingBack = 8 << 20
)

// Start has Go collect garbage as it suits a start, until the function returned is called. A process that holds little is collected
// more often than usual: a server without objects is ready with 2 MB less, and holds them less for as long as it runs, for some 20 ms
// of processor time. What a larger one makes mostly stays, and to look through it again and again is a third of its start's work: there
// may be three times as much garbage as lives, and 64 MiB and half of that if it holds much, since what a start took stays resident until
// the process rests. It changes nothing if the percentage has been set, by GOGC or by the program. Only a main function may call it.
func Start() (started func()) {
	if before := debug.SetGCPercent(smallStartPercent); before != usualPercent || os.Getenv("GOGC") != "" {
		debug.SetGCPercent(before)
		return func() {}
	}
	return start(func(percent int) { debug.SetGCPercent(percent) })
}

func start(set func(percent int)) (started func()) {
	var mu sync.Mutex
	done := false
	afterEach(func() (more bool) {
		mu.Lock()
		defer mu.Unlock()
		if !done {
			set(percentAtStart(liveBytes()))
		}
		return !done
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if !done {
			done = true
			set(usualPercent)
		}
	}
}

// percentAtStart is how much garbage there may be, of what lives, in a process that starts.
func percentAtStart(live int64) int {
	if live < smallStart {
		return smallStartPercent
	}
	return int(min(startPercent, 100*(startGarbage+live/startPart)/live))
}

// SpareCollections lets a process that is busy have twice as much garbage as it holds before it is collected, instead of as much:
// 128 MiB at least, and 256 MiB, or an eighth of its container's limit, at most, unless it holds that much. A server that holds 20 MB
// spends a sixth of its processor time on collections else, and one that holds 100 MB an eighth. One that holds more than 21 MiB
// has 16 MiB and a quarter of that, unless
// it is so busy that it would be collected more than once in two seconds then. A process that does hardly anything gives the
// operating system what it does not need, and what its start has left behind, pages of the program among it. What
// the environment says (GOGC) stands. While requests with Account.CollectOften are handled, there may be 12 MiB and a 64th of
// what lives. It is the process's own decision: only its main function may call it, and the function
// returned ends it.
func SpareCollections() (end func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	garbage := int64(mostBusyGarbage)
	if limit := ContainerLimit(); limit > 0 {
		garbage = min(garbage, limit/8)
	}
	endSparing := spareCollections(garbage, time.Now().Add(busyDelay), func(percent int) { debug.SetGCPercent(percent) })
	endGivingBack := giveBack(time.Tick(restPeriod), readHeap, func() {
		debug.FreeOSMemory()
		forgetProgram()
	})
	return func() {
		endGivingBack()
		endSparing()
	}
}

func spareCollections(garbage int64, from time.Time, set func(percent int)) (end func()) {
	c := &collections{garbage: garbage, set: set, last: from, percent: usualPercent}
	c.watch()
	ofProcess.Store(c)
	return func() {
		ofProcess.CompareAndSwap(c, nil)
		c.ended.Store(true)
	}
}

// ofProcess decides for the process, which has one collector, whatever budgets it has; nil if nothing does.
var ofProcess atomic.Pointer[collections]

// collections decides after each collection how much garbage there may be before the next.
type collections struct {
	garbage int64
	set     func(percent int)
	ended   atomic.Bool

	mu      sync.Mutex
	last    time.Time
	percent int
	lists   int // long ones that are being made
}

// begin has garbage collected often until end is called, as it suits a long list.
func (c *collections) begin(live int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	if percent := percentOfLists(live); c.lists == 1 && percent < c.percent && !c.ended.Load() {
		c.set(percent)
		c.percent = percent
	}
}

// end ends what begin began. The next collection decides anew.
func (c *collections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists--
}

// percentOfLists is how much garbage there may be at most, of what lives, while long lists are made.
func percentOfLists(live int64) int {
	live = max(live, 1<<20)
	return max(1, int(100*(listGarbage+live/listPart)/live))
}

// watch decides after each collection.
func (c *collections) watch() {
	afterEach(func() (more bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended.Load() {
			c.set(usualPercent)
			return false
		}
		c.collected(time.Now(), liveBytes())
		return true
	})
}

// cycle is garbage as soon as it is made, so that its finalizer runs after the next collection.
type cycle struct{ do func() (more bool) }

// afterEach calls a function after each collection for as long as that wants more.
func afterEach(do func() (more bool)) {
	runtime.SetFinalizer(&cycle{do}, func(c *cycle) {
		if c.do() {
			afterEach(c.do)
		}
	})
}

func liveBytes() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// collected decides, with mu held.
func (c *collections) collected(now time.Time, live int64) {
	live = max(live, 1<<20)
	percent := int(min(usualPercent, 100*(spareGarbage+live/sparePart)/live))
	// How soon it would have come with some garbage.
	gap := now.Sub(c.last)
	after := func(percent int) time.Duration { return gap * time.Duration(percent) / time.Duration(c.percent) }
	switch {
	case gap < 0:
		percent = usualPercent
	case after(usualPercent) < busyGap:
		percent = max(usualPercent, int(100*min(c.garbage, max(2*live, leastBusyGarbage))/live))
	case after(percent) < calmGap:
		percent = usualPercent
	}
	if c.lists > 0 {
		percent = min(percent, percentOfLists(live))
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

// heap is what the runtime says of a process's memory, in bytes.
type heap struct {
	made int64 // since the process began
	live int64 // at the last collection
	idle int64 // resident, and neither live nor in use for anything else
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return heap{made: value(0), live: value(1), idle: value(2) - value(1) + value(3) + value(4)}
}

// giveBack looks at each tick whether the process is at rest. The first time, it gives back the memory that its start has left
// behind, however little; after that, once after each time of work, if it is worth it and the process has rested for
// longRest ticks. The function returned ends it.
func giveBack(ticks <-chan time.Time, read func() heap, free func()) (end func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		before, due, started, rested := read().made, true, false, 0
		for {
			select {
			case <-done:
				return
			case <-ticks:
			}
			now := read()
			rests := now.made-before < restGarbage
			before = now.made
			rested++
			switch {
			case !rests:
				due, rested = true, 0
			case due && (!started || rested >= longRest && now.idle > worthGivingBack+now.live/sparePart/2):
				free()
				started, due = true, false
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
