package budget

import (
	"cmp"
	"runtime"
	"testing"
	"time"
)

func TestCollections_busyProcess(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		gaps []time.Duration // before each collection, from the start on
		live int64
		want int
		most int64 // garbage; 256 MiB if 0
	}{
		{"in its start", []time.Duration{-4 * time.Second, time.Millisecond, time.Millisecond}, 20 * mib, 100, 0},
		{"idle", []time.Duration{2 * time.Minute, 2 * time.Minute}, 20 * mib, 100, 0},
		{"busy", []time.Duration{time.Minute, 100 * time.Millisecond}, 20 * mib, 640, 0},
		{"busy in a small container", []time.Duration{time.Minute, 100 * time.Millisecond}, 20 * mib, 320, 64 * mib},
		{"busy with more", []time.Duration{time.Minute, 100 * time.Millisecond}, 100 * mib, 200, 0},
		{"busy with much", []time.Duration{time.Minute, 100 * time.Millisecond}, 160 * mib, 160, 0},
		{"busy with nothing", []time.Duration{time.Minute, time.Millisecond}, 0, 12800, 0},
		{"busy and large", []time.Duration{time.Minute, 100 * time.Millisecond}, 400 * mib, 100, 0},
		{"idle and large", []time.Duration{2 * time.Minute, 2 * time.Minute}, 256 * mib, 31, 0},
		{"idle and very large", []time.Duration{2 * time.Minute, 2 * time.Minute}, 2048 * mib, 25, 0},
		{"large and not busy, as often as that needs", []time.Duration{time.Minute, 2 * time.Second, 2 * time.Second}, 256 * mib, 31, 0},
		{"large and busy, as often as that needs", []time.Duration{time.Minute, 1900 * time.Millisecond, 3800 * time.Millisecond}, 256 * mib,
			100, 0},
		{"large and no longer busy", []time.Duration{time.Minute, 1900 * time.Millisecond, 7 * time.Second}, 256 * mib, 31, 0},
		{"busy, as often as that needs", []time.Duration{time.Minute, time.Millisecond, time.Second, time.Second}, 20 * mib, 640, 0},
		{"no longer busy", []time.Duration{time.Minute, time.Millisecond, time.Millisecond, 10 * time.Second}, 20 * mib, 100, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := &collections{garbage: cmp.Or(c.most, 256*mib), last: start, percent: usualPercent, set: func(int) {}}
			now := start
			for _, gap := range c.gaps {
				now = now.Add(gap)
				of.collected(now, c.live)
			}
			if of.percent != c.want {
				t.Errorf("got %d percent, want %d", of.percent, c.want)
			}
		})
	}
}

// While long lists are made, there is little garbage, however busy the process is; after them, the amount is as
// before.
func TestCollectOften_longLists(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	for live, want := range map[int64]int{8 * mib: 100, 20 * mib: 62, 64 * mib: 21, 128 * mib: 11, 512 * mib: 4, 8192 * mib: 2} {
		told := 0
		of := &collections{garbage: 256 * mib, last: start, percent: usualPercent, set: func(percent int) { told = percent }}
		ofProcess.Store(of)
		defer ofProcess.Store(nil)
		b := New(1 << 30)
		one, other := b.Account(Caller{}, nil), b.Account(Caller{}, nil)
		of.begin(live)
		if of.percent != want || want != usualPercent && told != want {
			t.Errorf("%d MiB live: %d percent and %d told when a list begins, want %d", live/mib, of.percent, told, want)
		}
		of.end()
		one.CollectOften()
		one.CollectOften()
		other.CollectOften()
		one.Close()
		one.Close()
		now := start.Add(time.Minute)
		for range 3 {
			now = now.Add(10 * time.Millisecond)
			of.collected(now, live)
		}
		if most := percentOfLists(1, live); of.percent > most {
			t.Errorf("%d MiB live: %d percent while a list is made, want %d at most", live/mib, of.percent, most)
		}
		other.Close()
		for range 3 {
			now = now.Add(time.Millisecond)
			of.collected(now, live)
		}
		if of.percent < usualPercent || of.lists != 0 {
			t.Errorf("%d MiB live: %d percent after %d lists", live/mib, of.percent, of.lists)
		}
	}
}

func TestPercentOfLists_moreLists_mayHaveMoreGarbage(t *testing.T) {
	const mib = 1 << 20
	for lists, want := range map[int]int{1: 4, 2: 7, 8: 21, 9: 21, 1000: 21} {
		if got := percentOfLists(lists, 512*mib); got != want {
			t.Errorf("%d lists: %d percent, want %d", lists, got, want)
		}
	}
}

func TestPercentAtStart(t *testing.T) {
	const mib = 1 << 20
	for live, want := range map[int64]int{0: 25, 11 * mib: 25, 12 * mib: 300, 25 * mib: 300, 64 * mib: 150, 128 * mib: 100, 1024 * mib: 56} {
		if got := percentAtStart(live); got != want {
			t.Errorf("%d MiB live: %d percent, want %d", live/mib, got, want)
		}
	}
}

// The setting at the end of the start stands, whatever collection follows.
func TestStart_endsOnce(t *testing.T) {
	told := make(chan int, 100)
	started := start(func(percent int) {
		select {
		case told <- percent:
		default:
		}
	})
	runtime.GC()
	if percent := <-told; percent != percentAtStart(liveBytes()) && (percent < smallStartPercent || percent > startPercent) {
		t.Errorf("%d percent at start", percent)
	}
	started()
	for percent := 0; percent != usualPercent; {
		percent = <-told
	}
	started()
	runtime.GC()
	runtime.GC()
	if len(told) > 0 {
		t.Errorf("%d percent after the start", <-told)
	}
}

// The runtime gets the setting, and the former setting is restored at the end.
func TestSpareCollections_setsAndRestoresPercent(t *testing.T) {
	told := make(chan int, 100)
	end := spareCollections(256<<20, time.Now().Add(-time.Hour), func(percent int) {
		select {
		case told <- percent:
		default:
		}
	})
	collect := func(until func(percent int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			garbage = make([]byte, 1<<20)
			select {
			case percent := <-told:
				if until(percent) {
					return
				}
			default:
			}
		}
		t.Fatal("the runtime was not told")
	}
	collect(func(percent int) bool { return percent > usualPercent })
	end()
	collect(func(percent int) bool { return percent == usualPercent })
}

var garbage []byte

func TestGiveBack_processAtRest(t *testing.T) {
	const mib = 1 << 20
	type step struct {
		made, live, idle int64 // made is the increase since the step before
		ticks            int   // of this kind; 1 if 0
		freed            int   // in all, after the step
	}
	begun := step{made: mib, live: 10 * mib, idle: 2 * mib, freed: 1} // of its start
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"busy", []step{{made: 100 * mib, live: 500 * mib, idle: 400 * mib, ticks: 100}}},
		{"of its start, however little", []step{{made: 40 * mib, live: 10 * mib, idle: 2 * mib}, begun, begun}},
		{"only once", []step{begun, {made: mib, live: 500 * mib, idle: 400 * mib, ticks: 100, freed: 1}}},
		{"after work, a long rest", []step{begun, {made: 100 * mib, live: 500 * mib, idle: 400 * mib, freed: 1},
			{made: mib, live: 500 * mib, idle: 400 * mib, ticks: longRest - 1, freed: 1}, {made: mib, live: 500 * mib, idle: 400 * mib, freed: 2}}},
		{"after work, short rests", []step{begun, {made: 100 * mib, live: 500 * mib, idle: 400 * mib, freed: 1},
			{made: mib, live: 500 * mib, idle: 400 * mib, ticks: longRest - 1, freed: 1},
			{made: 100 * mib, live: 500 * mib, idle: 400 * mib, freed: 1},
			{made: mib, live: 500 * mib, idle: 400 * mib, ticks: longRest - 1, freed: 1}}},
		{"not worth it", []step{begun, {made: 100 * mib, live: 500 * mib, idle: 50 * mib, freed: 1},
			{made: mib, live: 500 * mib, idle: 50 * mib, ticks: 2 * longRest, freed: 1},
			{made: mib, live: 10 * mib, idle: 10 * mib, freed: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ticks, looked := make(chan time.Time), make(chan heap)
			freed, made := 0, int64(0)
			go func() { looked <- heap{} }() // when it begins
			end := giveBack(ticks, func() heap { return <-looked }, func() { freed++ })
			ticks <- time.Time{}
			for i, s := range c.steps {
				for range max(1, s.ticks) {
					made += s.made
					looked <- heap{made, s.live, s.idle}
					ticks <- time.Time{} // when it is received, the step is done
				}
				if freed != s.freed {
					t.Errorf("step %d: given back %d times, want %d", i, freed, s.freed)
				}
			}
			looked <- heap{}
			end()
		})
	}
}

func TestReadHeap_isPlausible(t *testing.T) {
	garbage = make([]byte, 1<<20)
	if h := readHeap(); h.made < 1<<20 || h.live < 0 || h.idle < 0 || h.idle > 1<<40 {
		t.Errorf("%+v", h)
	}
}
