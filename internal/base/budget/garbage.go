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
	// usualPercent is the allowed garbage before a collection, in percent of the live heap. It is Go's default, and
	// the maximum for a process that is not busy.
	usualPercent = 100
	// A starting process collects often while its live heap is smaller than smallStart. Most of its allocations stay,
	// and are packed the closer the sooner the garbage in between is reused. A collection of so little takes a few
	// milliseconds.
	smallStartPercent, smallStart = 25, 12 << 20
	// Above smallStart, startPercent is the maximum; with a large live heap, the maximum is startGarbage plus the
	// live heap divided by startPart.
	startPercent, startPart, startGarbage = 300, 2, 64 << 20
	// spareGarbage plus a part of the live heap is the allowed garbage in a process that holds much and is not busy.
	// Stored objects are bytes that a collection does not scan, so a collection costs little compared to their size.
	spareGarbage = 16 << 20
	sparePart    = 4
	// A busy process may have garbage of twice the live heap: at least leastBusyGarbage, and at most mostBusyGarbage
	// unless the live heap is that large.
	leastBusyGarbage, mostBusyGarbage = 128 << 20, 256 << 20
	// listGarbage for each list plus a part of the live heap is the allowed garbage while long lists are made. They
	// produce a great deal of garbage, which lives for the time of an object, and would fill all allowed memory.
	// A collection costs the same for one list and for many, so more lists may have more garbage, up to mostLists.
	listGarbage = 12 << 20
	listPart    = 64
	mostLists   = 8
	// A process is busy if, with usualPercent, it would collect again within busyGap. A collection costs about as
	// much as the live heap, whether there was little garbage or much.
	busyGap = 500 * time.Millisecond
	// A process gets less than usualPercent only if its collections are then at least calmGap apart.
	calmGap = 2 * time.Second
	// busyDelay is the time for a start, whose garbage would otherwise enlarge the process for good.
	busyDelay = 5 * time.Second
	// restPeriod is the period in which a process has to allocate less than restGarbage to count as resting, and
	// after which it releases the memory of its start. After work, it keeps its memory for longRest such periods: a
	// burst after a minute's rest costs up to twice the processor time if the kernel has to find and clear the memory
	// again.
	restPeriod  = 5 * time.Second
	restGarbage = 8 << 20
	longRest    = 36
	// worthGivingBack is the minimum amount to release, beside a part of the live heap.
	worthGivingBack = 8 << 20
)

// Start tunes garbage collection for a start, until the returned function is called. A process that holds little
// collects more often than usual: a server without objects is ready with 2 MB less, and holds them less for as long
// as it runs, for some 20 ms of processor time. Most allocations of a larger process stay, and scanning them again
// and again is a third of the work of its start. So it may have garbage of three times the live heap, or, if it holds
// much, 64 MiB and half of the live heap, because the memory of a start stays resident until the process rests. Start
// changes nothing if the percentage has been set by GOGC or by the program. Only a main function may call it.
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

// percentAtStart returns the allowed garbage of a starting process, in percent of the live heap.
func percentAtStart(live int64) int {
	if live < smallStart {
		return smallStartPercent
	}
	return int(min(startPercent, 100*(startGarbage+live/startPart)/live))
}

// SpareCollections lets a busy process have garbage of twice the live heap, instead of as much as the live heap: at
// least 128 MiB, and at most 256 MiB or an eighth of its container's limit, unless the live heap is that large.
// Otherwise a server that holds 20 MB spends a sixth of its processor time on collections, and one with 100 MB an
// eighth. A process that holds more than 21 MiB may have 16 MiB of garbage and a quarter of the live heap, unless it
// is so busy that this would cause more than one collection in two seconds. An idle process releases unneeded memory
// to the operating system, including the rest of its start and pages of the program. GOGC in the environment takes
// precedence. While requests with Account.CollectOften are handled, there may be 12 MiB of garbage for each of them, up to
// 96 MiB, and a 64th of the live heap.
//
// Only the process's main function may call it, because it affects the whole process. The returned function ends it.
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

// ofProcess tunes the collector of the process, however many budgets it has; nil if nothing does.
var ofProcess atomic.Pointer[collections]

// collections decides after each collection how much garbage is allowed before the next.
type collections struct {
	garbage int64
	set     func(percent int)
	ended   atomic.Bool

	mu      sync.Mutex
	last    time.Time
	percent int
	lists   int // long lists being made
}

// begin makes collections frequent until end is called, for a long list.
func (c *collections) begin(live int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	if percent := percentOfLists(c.lists, live); c.lists == 1 && percent < c.percent && !c.ended.Load() {
		c.set(percent)
		c.percent = percent
	}
}

// end ends the effect of begin. The next collection decides anew.
func (c *collections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists--
}

// percentOfLists returns the allowed garbage while a number of long lists are made, in percent of the live heap.
func percentOfLists(lists int, live int64) int {
	live = max(live, 1<<20)
	garbage := int64(min(lists, mostLists))*listGarbage + live/listPart
	return int((100*garbage + live - 1) / live) // rounded up, because one percent of a large heap is more than listGarbage
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

// cycle is garbage as soon as it is created, so that its finalizer runs after the next collection.
type cycle struct{ do func() (more bool) }

// afterEach calls a function after each collection until it returns false.
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
	// The time after which the next collection would have come with a percentage of garbage.
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
		percent = min(percent, percentOfLists(c.lists, live))
	}
	if now.After(c.last) {
		c.last = now
	}
	// Setting the percentage briefly stops the world.
	if percent != usualPercent && percent > c.percent*9/10 && percent < c.percent*11/10 {
		return
	}
	if percent != c.percent {
		c.set(percent)
		c.percent = percent
	}
}

// heap holds the runtime's figures about a process's memory, in bytes.
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

// giveBack checks at each tick whether the process is at rest. The first time, it releases the memory of the start,
// however little; after that, it releases memory once after each period of work, if that is worth it and the process
// has rested for longRest ticks. The returned function ends it.
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
